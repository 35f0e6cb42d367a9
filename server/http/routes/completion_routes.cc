#include "server/http/routes/completion_routes.h"

#include "server/http/chat/chat.h"
#include "server/http/completions/completion.h"
#include "server/http/describe/openapi.h"
#include "server/http/generate/token_generation.h"
#include "server/http/sglang/sglang.h"
#include "server/http/tokenize/tokenize.h"
#include "server/http/trl/sequence_logprobs.h"

namespace taopd {
namespace {

Answer Config(ServingState& state) {
  const auto model = state.Admit();
  if (!model.ok()) return FromStatus(model.status());
  return (*model)->config_json;
}

Answer Load(ServingState& state) {
  const auto model = state.Admit();
  if (!model.ok()) return FromStatus(model.status());
  const EngineStats stats = (*model)->engine->stats();
  return Concat("{\"server_load\":", stats.num_running + stats.num_waiting, "}");
}

// A GET route whose answer is a JSON text or an error.
Route Describing(const char* path, ServingState* state, Answer (*describe)(ServingState&)) {
  return {"GET", path, RouteKind::kWork, [state, describe](const std::string&, const Caller&) {
            return ToResponse(describe(*state));
          }};
}

}  // namespace

Routes CompletionRoutes(ServingState* state) {
  using Run = Answer (*)(const std::string&, const Caller&, ServingState&);
  const auto answering = [state](const char* path, Run run) -> Route {
    return {"POST", path, RouteKind::kWork,
            [state, run](const std::string& body, const Caller& caller) {
              return ToResponse(run(body, caller, *state));
            }};
  };
  const auto openapi = [](const std::string&, const Caller&) {
    return JsonResponse(OpenApiJson());
  };
  const auto docs = [](const std::string&, const Caller&) {
    return TextResponse("text/html; charset=utf-8", DocsPage());
  };
  return {answering("/v1/completions", RunCompletion),
          answering("/v1/chat/completions", RunChat),
          answering("/inference/v1/generate", RunTokenGeneration),
          answering("/generate", RunSglang),
          answering("/get_sequence_logprobs/", RunSequenceLogprobs),
          answering("/tokenize", RunTokenize),
          answering("/detokenize", RunDetokenize),
          Describing("/tokenizer_info", state, DescribeTokenizer),
          Describing("/get_model_info", state, SglangModelInfo),
          Describing("/model_info", state, SglangModelInfo),
          Describing("/server_info", state, SglangServerInfo),
          Describing("/get_server_info", state, SglangServerInfo),
          Describing("/load", state, Load),
          Describing("/config", state, Config),
          {"GET", "/openapi.json", RouteKind::kWork, openapi},
          {"GET", "/docs", RouteKind::kWork, docs}};
}

}  // namespace taopd
