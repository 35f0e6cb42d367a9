// Runs the choices of a request on the engine and hands over what they produce, either all at the
// end or token by token, to a thread that waits for it.
//
// The engine's callbacks put results into a queue and never wait; the thread that calls Next takes
// them out. The queue holds no more than the answer's tokens.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "server/generation/engine_run.h"
#include "server/generation/generation_request.h"
#include "server/serving/serving_state.h"

namespace taopd {

// One thread at a time uses a Generation. Destroying it cancels what is unfinished.
class Generation {
 public:
  // Submits one engine request per choice. A prompt's first request also scores the prompt.
  // If `streams`, no prompt is scored (ScorePrompts does that), and updates come token by token.
  // `model` is kept until everything has ended.
  Generation(const GenerationRequest& request, const Caller& caller,
             std::shared_ptr<const ServedModel> model, bool streams);
  ~Generation() { run_->Cancel(); }
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  // Waits for the first update or the end. Returns the error of a request that has failed without
  // an update. REQUIRES: streams.
  absl::Status AwaitFirst();
  // Returns the next update, or nullopt when all choices have ended. Returns the first error of any
  // choice when the updates before it are taken, and CANCELLED soon after the client has gone.
  // REQUIRES: streams.
  absl::StatusOr<std::optional<ChoiceUpdate>> Next();
  // Waits for all choices and returns their results in order, or the first error.
  // REQUIRES: !streams.
  absl::StatusOr<std::vector<InferenceResult>> Finish();

 private:
  class Queue;

  // Waits for the next update or the end. Cancels the work if the client goes meanwhile.
  void AwaitEvent();

  const std::shared_ptr<const ServedModel> model_;
  const std::function<bool()> is_gone_;
  const std::shared_ptr<Queue> queue_;
  const std::shared_ptr<EngineRun> run_;
};

// The rows of each prompt; nullopt where there is nothing to score.
using PromptScores = std::vector<std::optional<ScoreRows>>;

// Scores all prompts, without generating. REQUIRES: prompt_logprobs.
absl::StatusOr<PromptScores> ScorePrompts(const GenerationRequest& request, const Caller& caller,
                                          const std::shared_ptr<const ServedModel>& model);

}  // namespace taopd
