#include "server/grpc/calls/engine_run.h"

#include <utility>

namespace taopd {

void EngineRun::Start(std::vector<InferenceRequest> requests) {
  std::vector<std::pair<InferenceRequest, InferenceDone>> work;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (events_.on_token) {
      requests[i].on_token = [run = shared_from_this(), i](const GeneratedTokens& so_far,
                                                           bool is_last) {
        run->events_.on_token(i, so_far, is_last);
      };
    }
    work.emplace_back(std::move(requests[i]),
                      [run = shared_from_this(), i](absl::StatusOr<InferenceResult> result) {
                        run->Complete(i, std::move(result));
                      });
  }
  {
    absl::MutexLock lock(&mutex_);
    num_open_ = work.size();
  }
  std::vector<RequestHandle> handles = engine_->SubmitBatch(std::move(work));
  bool cancel = false;
  {
    absl::MutexLock lock(&mutex_);
    handles_ = std::move(handles);
    cancel = cancelled_ && num_open_ > 0;
  }
  if (cancel) CancelOpen();
}

void EngineRun::Cancel() {
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    if (num_open_ == 0) return;
  }
  CancelOpen();
}

void EngineRun::CancelOpen() {
  std::vector<RequestHandle> handles;
  {
    absl::MutexLock lock(&mutex_);
    handles = handles_;
  }
  for (const RequestHandle handle : handles) {
    if (handle != 0) engine_->Cancel(handle);
  }
}

void EngineRun::Complete(size_t index, absl::StatusOr<InferenceResult> result) {
  if (result.ok()) events_.on_result(index, *std::move(result));
  bool ended = false, cancel = false;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    if (!result.ok() && status_.ok()) {
      status_ = result.status();
      cancel = !std::exchange(cancelled_, true);
    }
    ended = --num_open_ == 0;
    status = status_;
  }
  if (ended) {
    events_.on_end(status);
  } else if (cancel) {
    CancelOpen();
  }
}

}  // namespace taopd
