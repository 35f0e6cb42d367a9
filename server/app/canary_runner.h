// Has the canary (server/serving/canary.h) scored: at the start, and then at intervals. A wrong
// answer is asked for again at once, and only a second wrong one makes the server refuse work.
#pragma once

#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <memory>
#include <optional>

#include "server/serving/canary.h"
#include "server/serving/serving_state.h"

namespace taopd {

// Used by one thread at a time.
class CanaryRunner {
 public:
  // Probes are `interval` apart; zero means that only RunAtStart probes.
  CanaryRunner(ServingState* state, absl::Duration interval) : state_(state), interval_(interval) {}

  // Scores the canary twice, which also warms the engine up, and again if an answer is wrong, waits
  // for the answers, and gives the verdict to the ServingState. To be called before the model is
  // ready.
  void RunAtStart(std::shared_ptr<const ServedModel> model);
  // Takes an answer that has come, and asks again if it is time. Never blocks. Call it every second
  // or so.
  void Tick();

 private:
  // Where the engine's thread leaves an answer. It may come after the runner has gone.
  struct Inbox {
    absl::Mutex mutex;
    std::optional<absl::StatusOr<InferenceResult>> answer ABSL_GUARDED_BY(mutex);
  };

  void Ask();
  // Waits for the answer.
  void AskAndJudge();
  void Judge(const absl::StatusOr<InferenceResult>& answer);

  ServingState* const state_;
  const absl::Duration interval_;
  std::shared_ptr<const ServedModel> model_;
  std::optional<Canary> canary_;
  std::shared_ptr<Inbox> asked_;  // null unless an answer is awaited
  bool doubted_ = false;          // the last answer was wrong, and has not been confirmed
  absl::Time next_at_ = absl::InfiniteFuture();
};

}  // namespace taopd
