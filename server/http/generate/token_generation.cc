#include "server/http/generate/token_generation.h"

#include <utility>

#include "server/http/generate/token_request.h"
#include "server/http/generate/token_response.h"
#include "server/http/generation/generation.h"
#include "server/http/generation/logprob_json.h"
#include "server/http/generation/request_body.h"
#include "server/http/generation/stream_answer.h"
#include "server/http/structured/structured_output.h"

namespace taopd {

Answer RunTokenGeneration(const std::string& body, const Caller& caller, ServingState& state) {
  const auto model = state.Admit();
  if (!model.ok()) return FromStatus(model.status());
  auto parsed = ParseInTurn(body, caller, state, [&] { return ParseTokenRequest(body, **model); });
  if (HttpError* error = std::get_if<HttpError>(&parsed)) return std::move(*error);
  TokenRequest& request = std::get<TokenRequest>(parsed);
  if (!caller.request_id.empty()) request.request_id = caller.request_id;
  const absl::Status reserved =
      ReserveMemory(request, EstimateAnswerBytes(request, /*echo=*/false), **model, caller, &state);
  if (!reserved.ok()) return FromStatus(reserved);
  if (auto error = CompileGrammar(caller, **model, &request)) return *std::move(error);
  if (request.stream) {
    return StreamAnswer(std::move(request), caller, *model, StreamTokens);
  }
  Generation generation(request, caller, *model, /*streams=*/false);
  const auto results = generation.Finish();
  if (!results.ok()) return FromStatus(results.status());
  auto json =
      TokenResponseJson(request, **model, *results, absl::ToUnixSeconds(state.clock()->Now()));
  if (!json.ok()) return FromStatus(json.status());
  return *std::move(json);
}

}  // namespace taopd
