#include "server/http/completions/completion.h"

#include "server/http/completions/completion_request.h"
#include "server/http/completions/completion_response.h"
#include "server/http/completions/completion_stream.h"
#include "server/http/generation/logprob_json.h"
#include "server/http/generation/run_dialect.h"

namespace taopd {

Answer RunCompletion(const std::string& body, const Caller& caller, ServingState& state) {
  constexpr Dialect<CompletionRequest> kDialect = {
      .parse = ParseCompletionRequest,
      .answer_bytes = [](const auto& asked) { return EstimateAnswerBytes(asked, asked.echo); },
      .write = CompletionResponseJson,
      .stream = StreamCompletion,
      .streams_scores = [](const auto& asked) { return asked.echo && asked.prompt_logprobs; }};
  return RunDialect(kDialect, body, caller, state);
}

}  // namespace taopd
