#include "server/http/sglang/sglang.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "server/http/generation/generation.h"
#include "server/http/generation/logprob_json.h"
#include "server/http/generation/request_body.h"
#include "server/http/generation/stream_answer.h"
#include "server/http/sglang/sglang_request.h"
#include "server/http/sglang/sglang_response.h"
#include "server/http/structured/structured_output.h"
#include "server/options/version.h"

namespace taopd {
namespace {

// The events of a stream repeat everything so far, but only one of them exists at a time.
Answer Stream(SglangRequest request, const Caller& caller,
              const std::shared_ptr<const ServedModel>& model) {
  std::vector<std::optional<ScoreRows>> scores;
  if (request.return_logprob) {
    auto scored = ScorePrompts(request, caller, model);
    if (!scored.ok()) return FromStatus(scored.status());
    scores = *std::move(scored);
  }
  return StreamAnswer(
      std::move(request), caller, model,
      [scores = std::move(scores)](const SglangRequest& asked, const ServedModel& served,
                                   std::optional<ChoiceUpdate> first, Generation* generation,
                                   const SendPiece& send) {
        StreamSglang(asked, served, scores, std::move(first), generation, send);
      });
}

std::string Dump(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

Answer RunSglang(const std::string& body, const Caller& caller, ServingState& state) {
  const auto model = state.Admit();
  if (!model.ok()) return FromStatus(model.status());
  auto parsed = ParseInTurn(body, caller, state, [&] { return ParseSglangRequest(body, **model); });
  if (HttpError* error = std::get_if<HttpError>(&parsed)) return std::move(*error);
  SglangRequest& request = std::get<SglangRequest>(parsed);
  const absl::Status reserved =
      ReserveMemory(request, EstimateAnswerBytes(request, /*echo=*/true), **model, caller, &state);
  if (!reserved.ok()) return FromStatus(reserved);
  if (auto error = CompileGrammar(caller, **model, &request)) return *std::move(error);
  if (request.stream && request.max_tokens > 0) return Stream(std::move(request), caller, *model);
  Generation generation(request, caller, *model, /*streams=*/false);
  const auto results = generation.Finish();
  if (!results.ok()) return FromStatus(results.status());
  auto json = SglangResponseJson(request, **model, *results);
  if (!json.ok()) return FromStatus(json.status());
  if (!request.stream) return *std::move(json);
  return EventStream{[event = Event(*json)](const SendPiece& send) {
    if (send(event)) send(kLastEvent);
  }};
}

Answer SglangModelInfo(ServingState& state) {
  const auto model = state.Admit();
  if (!model.ok()) return FromStatus(model.status());
  nlohmann::ordered_json info;
  info["model_path"] = (*model)->root;
  info["tokenizer_path"] = (*model)->root;
  info["is_generation"] = (*model)->limits.can_generate;
  info["served_model_name"] = (*model)->name;
  info["weight_version"] = "default";
  return Dump(info);
}

Answer SglangServerInfo(ServingState& state) {
  const auto model = state.Admit();
  if (!model.ok()) return FromStatus(model.status());
  const EngineLimits& limits = (*model)->limits;
  const EngineStats stats = (*model)->engine->stats();
  nlohmann::ordered_json info;
  info["model_path"] = (*model)->root;
  info["served_model_name"] = (*model)->name;
  info["revision"] = (*model)->revision;
  info["dtype"] = (*model)->dtype;
  info["context_length"] = limits.max_model_len;
  info["max_logprobs"] = limits.max_logprobs;
  info["max_running_requests"] = limits.max_num_seqs;
  info["num_running_requests"] = stats.num_running;
  info["num_queue_requests"] = stats.num_waiting;
  info["version"] = kTeacherVersion;
  return Dump(info);
}

}  // namespace taopd
