// The sequences of one call in the engine: submitted together, cancelled together.
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

namespace taopd {

// All functions run on the engine's thread, or inside of Start if the requests are refused, and
// must not block.
struct EngineEvents {
  // A token of sequence `index` has come (InferenceRequest::on_token). Optional.
  std::function<void(size_t index, const GeneratedTokens& so_far, bool is_last)> on_token;
  // Sequence `index` has ended well.
  std::function<void(size_t index, InferenceResult result)> on_result;
  // Every sequence has ended: OK, or the first error. The rest is cancelled at the first error. The
  // last call.
  std::function<void(const absl::Status& status)> on_end;
};

class EngineRun : public std::enable_shared_from_this<EngineRun> {
 public:
  // `engine` outlives the run's work.
  EngineRun(InferenceEngine* engine, EngineEvents events)
      : engine_(engine), events_(std::move(events)) {}

  // To be called once, on an object that a shared_ptr owns. REQUIRES: there are requests.
  void Start(std::vector<InferenceRequest> requests);
  // Ends it without having started it, as the last thing: calls on_end.
  void Refuse(const absl::Status& status) { events_.on_end(status); }
  // Ends the sequences soon; on_end is still called. Any number of times, also before Start.
  void Cancel();
  bool is_cancelled() const {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  }

 private:
  void Complete(size_t index, absl::StatusOr<InferenceResult> result);
  void CancelOpen();

  InferenceEngine* const engine_;
  const EngineEvents events_;
  mutable absl::Mutex mutex_;
  std::vector<RequestHandle> handles_ ABSL_GUARDED_BY(mutex_);
  size_t num_open_ ABSL_GUARDED_BY(mutex_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace taopd
