// An engine that stands for one version of its weights. It takes requests until it is closed, and
// computes all of them with the same weights, because these are replaced only while it is closed
// and idle. A holder of an older version is refused and cannot reach the new weights under the old
// name.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/engine/engine.h"

namespace taopd {

// Thread-safe.
class VersionedEngine final : public InferenceEngine {
 public:
  explicit VersionedEngine(std::shared_ptr<InferenceEngine> engine) : engine_(std::move(engine)) {}

  // A closed engine refuses requests with UNAVAILABLE.
  std::vector<RequestHandle> SubmitBatch(RequestBatch requests) override;
  void Cancel(RequestHandle handle) override { engine_->Cancel(handle); }
  void Drain(absl::Time deadline) override { engine_->Drain(deadline); }
  void ReleaseKvCache() override { engine_->ReleaseKvCache(); }
  EngineLimits limits() const override { return engine_->limits(); }
  EngineStats stats() const override { return engine_->stats(); }

  // Refuses new requests, and returns when the others have ended. If `drops` is set, they end soon,
  // with ABORTED. Returns DEADLINE_EXCEEDED, and is open again, if they have not ended in time.
  absl::Status Close(bool drops, absl::Time deadline);

 private:
  // Guarded by the mutex of Requests. A request may be done before its handle is known.
  struct Request {
    RequestHandle handle = 0;
    bool is_done = false;
    bool is_dropped = false;  // Close cancels it
  };
  // The requests that were taken. Their callbacks share it, and may outlive the object.
  struct Requests {
    absl::Mutex mutex;
    bool is_closed ABSL_GUARDED_BY(mutex) = false;
    bool is_dropping ABSL_GUARDED_BY(mutex) = false;
    int64_t num_open ABSL_GUARDED_BY(mutex) = 0;
    // The requests that are not done and whose handles are known.
    std::map<RequestHandle, std::shared_ptr<Request>> by_handle ABSL_GUARDED_BY(mutex);
  };

  // Returns a callback that records the end of the request and then calls `done`.
  InferenceDone Recorded(std::shared_ptr<Request> request, InferenceDone done) const;

  const std::shared_ptr<InferenceEngine> engine_;
  const std::shared_ptr<Requests> requests_ = std::make_shared<Requests>();
};

}  // namespace taopd
