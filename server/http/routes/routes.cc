#include "server/http/routes/routes.h"

#include <nlohmann/json.hpp>

#include "common/metrics/prometheus.h"
#include "server/http/protocols/protocols.h"
#include "server/http/request/json_fields.h"
#include "server/http/routes/openapi.h"
#include "server/http/routes/tokenize.h"
#include "server/options/version.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

// Answers GET /v1/models as vLLM does.
absl::StatusOr<Answer> Models(const ServedModel& model) {
  ordered_json permission;
  permission["id"] = "modelperm-" + model.revision.substr(0, 32);
  permission["object"] = "model_permission";
  permission["created"] = model.created_unix_s;
  permission["allow_create_engine"] = false;
  permission["allow_sampling"] = true;
  permission["allow_logprobs"] = true;
  permission["allow_search_indices"] = false;
  permission["allow_view"] = true;
  permission["allow_fine_tuning"] = false;
  permission["organization"] = "*";
  permission["group"] = nullptr;
  permission["is_blocking"] = false;
  ordered_json entry;
  entry["id"] = model.name;
  entry["object"] = "model";
  entry["created"] = model.created_unix_s;
  entry["owned_by"] = "taopd";
  entry["root"] = model.root;
  entry["parent"] = nullptr;
  entry["max_model_len"] = model.limits.max_model_len;
  entry["permission"] = ordered_json::array({permission});
  return JsonText({{"object", "list"}, {"data", ordered_json::array({entry})}});
}

// Answers GET /get_model_info and /model_info as SGLang does.
absl::StatusOr<Answer> SglangModelInfo(const ServedModel& model) {
  ordered_json info;
  info["model_path"] = model.root;
  info["tokenizer_path"] = model.root;
  info["is_generation"] = model.limits.can_generate;
  info["served_model_name"] = model.name;
  info["weight_version"] = model.weight_version;
  return JsonText(info);
}

// Answers GET /server_info and /get_server_info as SGLang does.
absl::StatusOr<Answer> SglangServerInfo(const ServedModel& model) {
  const EngineStats stats = model.engine->stats();
  ordered_json info;
  info["model_path"] = model.root;
  info["served_model_name"] = model.name;
  info["revision"] = model.revision;
  info["dtype"] = model.dtype;
  info["context_length"] = model.limits.max_model_len;
  info["max_logprobs"] = model.limits.max_logprobs;
  info["max_running_requests"] = model.limits.max_num_seqs;
  info["num_running_requests"] = stats.num_running;
  info["num_queue_requests"] = stats.num_waiting;
  info["version"] = kTeacherVersion;
  return JsonText(info);
}

absl::StatusOr<Answer> Config(const ServedModel& model) { return model.config_json; }

absl::StatusOr<Answer> Load(const ServedModel& model) {
  const EngineStats stats = model.engine->stats();
  return Concat("{\"server_load\":", stats.num_running + stats.num_waiting, "}");
}

// Returns a GET route that describes the served model, or says why there is none.
Route ModelRoute(const char* path, ServingState* state,
                 absl::StatusOr<Answer> (*describe)(const ServedModel&)) {
  const auto answer = [state, describe]() -> absl::StatusOr<Answer> {
    TAOPD_ASSIGN_OR_RETURN(const auto model, state->Admit());
    return describe(*model);
  };
  return {"GET", path, RouteKind::kWork,
          [answer](const std::string&, const Caller&) { return ToResponse(answer()); }};
}

// Returns a GET route whose answer is always the same.
Route StaticRoute(const char* path, const HttpResponse& response) {
  return {"GET", path, RouteKind::kWork,
          [response](const std::string&, const Caller&) { return response; }};
}

HttpResponse OkOrError(const absl::Status& status) {
  return status.ok() ? HttpResponse() : ErrorResponse(ToHttpError(status));
}

}  // namespace

Routes MakeRoutes(ServingState* state, ServerMetrics* metrics) {
  const auto health = [state](const std::string&, const Caller&) {
    return OkOrError(state->Health());
  };
  const auto ready = [state](const std::string&, const Caller&) {
    return OkOrError(state->Ready());
  };
  const auto metrics_text = [state, metrics](const std::string&, const Caller&) {
    return TextResponse(kPrometheusContentType, metrics->Text(*state));
  };
  using Run = absl::StatusOr<Answer> (*)(const std::string&, const Caller&, ServingState&);
  const auto protocol_route = [state](const char* path, Run run) -> Route {
    return {"POST", path, RouteKind::kWork,
            [state, run](const std::string& body, const Caller& caller) {
              return ToResponse(run(body, caller, *state));
            }};
  };
  return {{"GET", "/health", RouteKind::kProbe, health},
          {"GET", "/ping", RouteKind::kProbe, health},
          {"POST", "/ping", RouteKind::kProbe, health},
          {"GET", "/health_generate", RouteKind::kProbe, health},  // SGLang's
          {"GET", "/ready", RouteKind::kProbe, ready},
          {"GET", "/metrics", RouteKind::kProbe, metrics_text},
          protocol_route("/v1/completions", RunCompletion),
          protocol_route("/v1/chat/completions", RunChat),
          protocol_route("/inference/v1/generate", RunTokenGeneration),
          protocol_route("/generate", RunSglang),
          protocol_route("/get_sequence_logprobs/", RunSequenceLogprobs),
          protocol_route("/tokenize", RunTokenize),
          protocol_route("/detokenize", RunDetokenize),
          ModelRoute("/tokenizer_info", state, DescribeTokenizer),
          ModelRoute("/v1/models", state, Models),
          ModelRoute("/get_model_info", state, SglangModelInfo),
          ModelRoute("/model_info", state, SglangModelInfo),
          ModelRoute("/server_info", state, SglangServerInfo),
          ModelRoute("/get_server_info", state, SglangServerInfo),
          ModelRoute("/load", state, Load),
          ModelRoute("/config", state, Config),
          StaticRoute("/version", JsonResponse(ordered_json{{"version", kTeacherVersion}}.dump())),
          StaticRoute("/openapi.json", JsonResponse(OpenApiJson())),
          StaticRoute("/docs", TextResponse("text/html; charset=utf-8", DocsPage()))};
}

}  // namespace taopd
