// The choices of one request in the engine, which are submitted and cancelled together.
//
// Thread-safe. The engine's callbacks share the ownership of a run, but not of the model. The owner
// of the run must keep the model until the run has ended and its call is done.
#pragma once

#include <absl/synchronization/mutex.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "common/base/worker_pool.h"
#include "common/engine/engine.h"

namespace taopd {

// The tokens that a choice has generated since its last update: at least one.
struct ChoiceUpdate {
  size_t choice = 0;
  GeneratedTokens tokens;  // the new ones; `finish` is valid if is_last
  bool is_last = false;
};

// The functions must not block. They run in the order of the events, on the run's delivery thread.
// A run without one calls them on the engine's thread, or within Start or Refuse.
struct EngineEvents {
  // A choice has one more token. Optional.
  std::function<void(ChoiceUpdate update)> on_update;
  // The choice has ended without an error. Optional.
  std::function<void(size_t choice, InferenceResult result)> on_result;
  // All choices have ended. `status` is OK or the first error, at which the others are cancelled.
  // This is the last call.
  std::function<void(const absl::Status& status)> on_end;
};

// Gives the task to `thread`, which has one thread, or runs it immediately if `thread` is null.
// Tasks must not block.
void Deliver(WorkerPool* thread, absl::AnyInvocable<void()> task);

class EngineRun : public std::enable_shared_from_this<EngineRun> {
 public:
  // `engine` must outlive the run's work. `delivery` may be null, or must outlive its last event.
  EngineRun(InferenceEngine* engine, WorkerPool* delivery, EngineEvents events)
      : engine_(engine), delivery_(delivery), events_(std::move(events)) {}

  // Call it once, on an object that a shared_ptr owns. A request that asks for nothing ends with an
  // empty result. REQUIRES: `requests` is not empty.
  void Start(std::vector<InferenceRequest> requests);
  // Ends a run that was not started, and calls on_end.
  void Refuse(const absl::Status& status) {
    Deliver(delivery_, [run = shared_from_this(), status] { run->events_.on_end(status); });
  }
  // Ends the choices soon; on_end is still called. May be called several times, and before Start.
  void Cancel();
  bool is_cancelled() const {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  }

 private:
  void Complete(size_t choice, absl::StatusOr<InferenceResult> result);
  void CancelOpen();

  InferenceEngine* const engine_;
  WorkerPool* const delivery_;
  const EngineEvents events_;
  mutable absl::Mutex mutex_;
  std::vector<RequestHandle> handles_ ABSL_GUARDED_BY(mutex_);
  size_t num_open_ ABSL_GUARDED_BY(mutex_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// Appends the last `num_tokens` of `from`, which has `num_log_probs` alternatives per token, and
// copies its `finish`.
void AppendLastTokens(const GeneratedTokens& from, size_t num_tokens, size_t num_log_probs,
                      GeneratedTokens* to);

}  // namespace taopd
