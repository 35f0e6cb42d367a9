#include "server/serving/policy/versioned_engine.h"

namespace taopd {
namespace {

absl::Status Closed() {
  return Unavailable("the weights are being replaced; ask again for the new ones");
}

}  // namespace

std::vector<RequestHandle> VersionedEngine::SubmitBatch(
    std::vector<std::pair<InferenceRequest, InferenceDone>> requests) {
  bool is_closed;
  {
    absl::MutexLock lock(&open_->mutex);
    is_closed = open_->is_closed;
    if (!is_closed) open_->num_requests += static_cast<int64_t>(requests.size());
  }
  if (is_closed) {
    for (auto& [request, done] : requests) done(Closed());
    return std::vector<RequestHandle>(requests.size(), 0);
  }
  // A request may be done before its handle is known.
  struct Request {
    RequestHandle handle = 0;
    bool is_done = false;
  };
  std::vector<std::shared_ptr<Request>> states;
  for (auto& [request, done] : requests) {
    auto state = states.emplace_back(std::make_shared<Request>());
    done = [open = open_, state,
            inner = std::move(done)](absl::StatusOr<InferenceResult> result) mutable {
      {
        absl::MutexLock lock(&open->mutex);
        state->is_done = true;
        open->handles.erase(state->handle);
        if (open->is_dropping && absl::IsCancelled(result.status()))
          result = absl::AbortedError("the weights were replaced; ask again for the new ones");
      }
      inner(std::move(result));
      inner = nullptr;
      absl::MutexLock lock(&open->mutex);
      --open->num_requests;
    };
  }
  const std::vector<RequestHandle> handles = engine_->SubmitBatch(std::move(requests));
  bool is_dropping = false;
  {
    absl::MutexLock lock(&open_->mutex);
    for (size_t i = 0; i < handles.size(); ++i) {
      if (states[i]->is_done || handles[i] == 0) continue;
      states[i]->handle = handles[i];
      open_->handles.insert(handles[i]);
    }
    is_dropping = open_->is_dropping;
  }
  for (size_t i = 0; is_dropping && i < handles.size(); ++i) engine_->Cancel(handles[i]);
  return handles;
}

absl::Status VersionedEngine::Close(bool drops, absl::Time deadline) {
  std::set<RequestHandle> handles;
  {
    absl::MutexLock lock(&open_->mutex);
    open_->is_closed = true;
    open_->is_dropping = drops;
    if (drops) handles = open_->handles;
  }
  for (const RequestHandle handle : handles) engine_->Cancel(handle);
  absl::MutexLock lock(&open_->mutex);
  const auto is_idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(open_->mutex) {
    return open_->num_requests == 0;
  };
  if (open_->mutex.AwaitWithDeadline(absl::Condition(&is_idle), deadline)) return absl::OkStatus();
  open_->is_closed = open_->is_dropping = false;
  return absl::DeadlineExceededError(
      Concat(open_->num_requests, " sequences are still being computed"));
}

}  // namespace taopd
