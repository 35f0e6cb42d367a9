#include "server/http/generate/token_generation.h"

#include "server/http/generate/token_request.h"
#include "server/http/generate/token_response.h"
#include "server/http/generation/logprob_json.h"
#include "server/http/generation/run_dialect.h"

namespace taopd {

Answer RunTokenGeneration(const std::string& body, const Caller& caller, ServingState& state) {
  constexpr Dialect<TokenRequest> kDialect = {
      .parse = ParseTokenRequest,
      .answer_bytes = [](const auto& asked) { return EstimateAnswerBytes(asked, /*echo=*/false); },
      .write = TokenResponseJson,
      .stream = StreamTokens,
      .streams_scores = [](const auto&) { return false; }};
  return RunDialect(kDialect, body, caller, state);
}

}  // namespace taopd
