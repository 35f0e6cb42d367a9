#include "server/serving/policy/versioned_engine.h"

namespace taopd {

std::vector<RequestHandle> VersionedEngine::SubmitBatch(RequestBatch requests) {
  bool is_closed;
  {
    absl::MutexLock lock(&requests_->mutex);
    is_closed = requests_->is_closed;
    if (!is_closed) requests_->num_open += static_cast<int64_t>(requests.size());
  }
  if (is_closed) {
    for (auto& [request, done] : requests)
      done(Unavailable("the weights are being replaced; ask again for the new ones"));
    return std::vector<RequestHandle>(requests.size(), 0);
  }
  std::vector<std::shared_ptr<Request>> states;
  for (auto& [request, done] : requests)
    done = Recorded(states.emplace_back(std::make_shared<Request>()), std::move(done));
  const std::vector<RequestHandle> handles = engine_->SubmitBatch(std::move(requests));
  bool is_dropping = false;
  {
    absl::MutexLock lock(&requests_->mutex);
    is_dropping = requests_->is_dropping;
    for (size_t i = 0; i < handles.size(); ++i) {
      if (states[i]->is_done || handles[i] == 0) continue;
      states[i]->handle = handles[i];
      states[i]->is_dropped = is_dropping;
      requests_->by_handle.emplace(handles[i], states[i]);
    }
  }
  for (size_t i = 0; is_dropping && i < handles.size(); ++i) engine_->Cancel(handles[i]);
  return handles;
}

InferenceDone VersionedEngine::Recorded(std::shared_ptr<Request> request,
                                        InferenceDone done) const {
  return [requests = requests_, request = std::move(request),
          done = std::move(done)](absl::StatusOr<InferenceResult> result) mutable {
    {
      absl::MutexLock lock(&requests->mutex);
      request->is_done = true;
      requests->by_handle.erase(request->handle);
      if (request->is_dropped && absl::IsCancelled(result.status()))
        result = absl::AbortedError("dropped to replace the weights; ask again for the new ones");
    }
    done(std::move(result));
    done = nullptr;
    absl::MutexLock lock(&requests->mutex);
    --requests->num_open;
  };
}

absl::Status VersionedEngine::Close(bool drops, absl::Time deadline) {
  std::vector<RequestHandle> dropped;
  {
    absl::MutexLock lock(&requests_->mutex);
    requests_->is_closed = true;
    requests_->is_dropping = drops;
    if (drops) {
      for (const auto& [handle, request] : requests_->by_handle) {
        request->is_dropped = true;
        dropped.push_back(handle);
      }
    }
  }
  for (const RequestHandle handle : dropped) engine_->Cancel(handle);
  absl::MutexLock lock(&requests_->mutex);
  const auto is_idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(requests_->mutex) {
    return requests_->num_open == 0;
  };
  if (requests_->mutex.AwaitWithDeadline(absl::Condition(&is_idle), deadline))
    return absl::OkStatus();
  requests_->is_closed = requests_->is_dropping = false;
  return absl::DeadlineExceededError(
      Concat(requests_->num_open, " sequences are still being computed"));
}

}  // namespace taopd
