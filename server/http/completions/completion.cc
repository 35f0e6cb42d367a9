#include "server/http/completions/completion.h"

#include <optional>
#include <utility>
#include <vector>

#include "server/http/completions/completion_request.h"
#include "server/http/completions/completion_response.h"
#include "server/http/completions/completion_stream.h"
#include "server/http/generation/generation.h"
#include "server/http/generation/logprob_json.h"
#include "server/http/generation/request_body.h"
#include "server/http/generation/stream_answer.h"
#include "server/http/structured/structured_output.h"

namespace taopd {
Answer RunCompletion(const std::string& body, const Caller& caller, ServingState& state) {
  const auto model = state.Admit();
  if (!model.ok()) return FromStatus(model.status());
  auto parsed =
      ParseInTurn(body, caller, state, [&] { return ParseCompletionRequest(body, **model); });
  if (HttpError* error = std::get_if<HttpError>(&parsed)) return std::move(*error);
  CompletionRequest& request = std::get<CompletionRequest>(parsed);
  if (!caller.request_id.empty()) request.request_id = caller.request_id;
  const absl::Status reserved =
      ReserveMemory(request, EstimateAnswerBytes(request, request.echo), **model, caller, &state);
  if (!reserved.ok()) return FromStatus(reserved);
  if (auto error = CompileGrammar(caller, **model, &request)) return *std::move(error);
  const int64_t created_unix_s = absl::ToUnixSeconds(state.clock()->Now());
  if (request.stream) {
    std::vector<std::optional<ScoreRows>> scores;
    if (request.echo && request.prompt_logprobs) {
      auto scored = ScorePrompts(request, caller, *model);
      if (!scored.ok()) return FromStatus(scored.status());
      scores = *std::move(scored);
    }
    return StreamAnswer(
        std::move(request), caller, *model,
        [scores = std::move(scores), created_unix_s](
            const CompletionRequest& asked, const ServedModel& served,
            std::optional<ChoiceUpdate> first, Generation* generation, const SendPiece& send) {
          StreamCompletion(asked, served, scores, created_unix_s, std::move(first), generation,
                           send);
        });
  }
  Generation generation(request, caller, *model, /*streams=*/false);
  const auto results = generation.Finish();
  if (!results.ok()) return FromStatus(results.status());
  auto json = CompletionResponseJson(request, **model, *results, created_unix_s);
  if (!json.ok()) return FromStatus(json.status());
  return *std::move(json);
}

}  // namespace taopd
