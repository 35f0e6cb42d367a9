// Runs the choices of a request on the engine and hands over what they produce, either all at the
// end or token by token.
//
// The engine's callbacks put results into a queue and never wait; the thread that calls Next takes
// them out. The queue holds no more than the answer's tokens.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "server/http/generation/generation_request.h"
#include "server/http/http_error.h"
#include "server/serving/serving_state.h"

namespace taopd {

// What a choice has generated since its last update: at least one token.
struct ChoiceUpdate {
  size_t choice = 0;
  GeneratedTokens tokens;  // the new ones; `finish` is valid if is_last
  bool is_last = false;
};

// One thread at a time uses a Generation. Destroying it cancels what is unfinished.
class Generation {
 public:
  // Submits one engine request per choice, which scores the prompt with its first choice. If
  // `streams`, prompts are not scored (ScorePrompts does that), and updates come token by token.
  // `model` is kept until everything has ended.
  Generation(const GenerationRequest& request, const Caller& caller,
             std::shared_ptr<const ServedModel> model, bool streams);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  // The next update; nullopt when all choices have ended. Returns the first error of any choice
  // when the updates before it are taken, and CANCELLED soon after the client has gone. REQUIRES:
  // streams.
  absl::StatusOr<std::optional<ChoiceUpdate>> Next();
  // Waits for all choices and returns their results in order, or the first error.
  absl::StatusOr<std::vector<InferenceResult>> Finish();

 private:
  class Queue;

  // Waits until `ready` or until the client has gone, which cancels the work.
  template <typename Ready>
  void Await(const Ready& ready);
  void Cancel();

  const std::shared_ptr<const ServedModel> model_;
  const std::function<bool()> is_gone_;
  const std::shared_ptr<Queue> queue_;
  std::vector<RequestHandle> handles_;
  bool cancelled_ = false;
};

// Scores all prompts, without generating: nullopt where there is nothing to score. REQUIRES:
// prompt_logprobs.
absl::StatusOr<std::vector<std::optional<ScoreRows>>> ScorePrompts(
    const GenerationRequest& request, const Caller& caller,
    const std::shared_ptr<const ServedModel>& model);

// What the engine is to score of a prompt; nullopt if that is nothing.
std::optional<ScoreParams> ScoreParamsOf(const GenerationRequest& request,
                                         const GenerationPrompt& prompt);

// Checks the fields of all choices as the engine will, with its errors.
absl::Status ValidateChoices(const GenerationRequest& request, const Caller& caller,
                             const ServedModel& model);

// Checks that the answer, of at most `answer_bytes`, and the request are of a bearable size, and
// reserves their memory.
absl::Status ReserveMemory(const GenerationRequest& request, int64_t answer_bytes,
                           const ServedModel& model, const Caller& caller, ServingState* state);

}  // namespace taopd
