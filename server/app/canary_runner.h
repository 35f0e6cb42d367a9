// Scores the canary (server/app/canary.h) at the start and then at intervals. After a wrong
// answer it asks again immediately, and only a second wrong answer makes the server refuse work.
#pragma once

#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <memory>
#include <optional>

#include "server/app/canary.h"
#include "server/serving/serving_state.h"

namespace taopd {

// Used by one thread at a time.
class CanaryRunner {
 public:
  // Probes are `interval` apart; zero means that only RunAtStart probes.
  CanaryRunner(ServingState* state, absl::Duration interval) : state_(state), interval_(interval) {}

  // Scores the canary twice, which also warms up the engine, and again if an answer is wrong. Waits
  // for the answers and gives the verdict to the ServingState. Call it before the model is ready.
  // Returns INTERNAL if the engine has no heartbeat for `stall_timeout` meanwhile (noticing it may
  // take twice that time), and the error of a probe that is not computed, such as
  // RESOURCE_EXHAUSTED for want of memory.
  absl::Status RunAtStart(std::shared_ptr<const ServedModel> model, absl::Duration stall_timeout);
  // Probes this model from now on. Its answers are not compared with those of the previous model.
  // Never blocks.
  void Follow(const std::shared_ptr<const ServedModel>& model);
  // Handles an answer that has arrived, and asks again if it is time. Never blocks. Call it about
  // every second.
  void Tick();

 private:
  // The place in which the engine's thread leaves an answer, possibly after the runner has been
  // destroyed.
  struct CanaryAnswer {
    absl::Mutex mutex;
    std::optional<absl::StatusOr<InferenceResult>> answer ABSL_GUARDED_BY(mutex);
  };

  // Forgets the previous model's answers. Returns whether there is anything to probe.
  bool Begin(std::shared_ptr<const ServedModel> model);
  void Ask();
  // Waits for the answer. The errors are those of RunAtStart.
  absl::Status AskAndJudge(absl::Duration stall_timeout);
  // Returns the answer, or nullopt if it does not arrive within `timeout`. REQUIRES: asked_.
  std::optional<absl::StatusOr<InferenceResult>> TakeAnswer(absl::Duration timeout);
  void Judge(const absl::StatusOr<InferenceResult>& answer);

  ServingState* const state_;
  const absl::Duration interval_;
  std::shared_ptr<const ServedModel> model_;
  std::optional<Canary> canary_;
  std::shared_ptr<CanaryAnswer> asked_;  // null unless an answer is awaited
  bool doubted_ = false;                 // the last answer was wrong and is not confirmed yet
  absl::Time next_at_ = absl::InfiniteFuture();
};

}  // namespace taopd
