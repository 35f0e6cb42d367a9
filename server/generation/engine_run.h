// The choices of one request in the engine: submitted together, cancelled together.
//
// Thread-safe. The engine's callbacks share the ownership of a run, but not of the model: the owner
// of the run keeps the model until the run has ended and its call is done.
#pragma once

#include <absl/synchronization/mutex.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "common/engine/engine.h"
#include "server/generation/delivery_thread.h"

namespace taopd {

// What a choice has generated since its last update: at least one token.
struct ChoiceUpdate {
  size_t choice = 0;
  GeneratedTokens tokens;  // the new ones; `finish` is valid if is_last
  bool is_last = false;
};

// No function may block. They run in the order of the events: on the delivery thread of the run,
// or, in a run without one, on the engine's thread, or inside of Start if the requests are refused.
struct EngineEvents {
  // A choice has one more token. Optional.
  std::function<void(ChoiceUpdate update)> on_update;
  // The choice has ended well. Optional.
  std::function<void(size_t choice, InferenceResult result)> on_result;
  // Every choice has ended: OK, or the first error. The rest is cancelled at the first error. The
  // last call.
  std::function<void(const absl::Status& status)> on_end;
};

class EngineRun : public std::enable_shared_from_this<EngineRun> {
 public:
  // `engine` outlives the run's work, and `delivery`, which may be null, its last event.
  EngineRun(InferenceEngine* engine, DeliveryThread* delivery, EngineEvents events)
      : engine_(engine), delivery_(delivery), events_(std::move(events)) {}

  // To be called once, on an object that a shared_ptr owns. A request that asks for nothing ends
  // with an empty result. REQUIRES: there are requests.
  void Start(std::vector<InferenceRequest> requests);
  // Ends it without having started it, as the last thing: calls on_end.
  void Refuse(const absl::Status& status);
  // Ends the choices soon; on_end is still called. Any number of times, also before Start.
  void Cancel();
  bool is_cancelled() const {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  }

 private:
  void Complete(size_t choice, absl::StatusOr<InferenceResult> result);
  void CancelOpen();

  InferenceEngine* const engine_;
  DeliveryThread* const delivery_;
  const EngineEvents events_;
  mutable absl::Mutex mutex_;
  std::vector<RequestHandle> handles_ ABSL_GUARDED_BY(mutex_);
  size_t num_open_ ABSL_GUARDED_BY(mutex_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// Appends the last `num_tokens` of `from`, which has `num_log_probs` alternatives per token, and
// takes over its `finish`.
void AppendLastTokens(const GeneratedTokens& from, size_t num_tokens, size_t num_log_probs,
                      GeneratedTokens* to);

}  // namespace taopd
