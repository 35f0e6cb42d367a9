#include "server/generation/engine_run.h"

#include <utility>

namespace taopd {
namespace {

template <typename T>
void AppendEnd(const std::vector<T>& from, size_t num, std::vector<T>* to) {
  if (from.size() >= num)
    to->insert(to->end(), from.end() - static_cast<ptrdiff_t>(num), from.end());
}

}  // namespace

void AppendLastTokens(const GeneratedTokens& from, size_t num_tokens, size_t num_log_probs,
                      GeneratedTokens* to) {
  AppendEnd(from.ids, num_tokens, &to->ids);
  AppendEnd(from.log_probs, num_tokens, &to->log_probs);
  AppendEnd(from.raw_log_probs, num_tokens, &to->raw_log_probs);
  AppendEnd(from.ranks, num_tokens, &to->ranks);
  AppendEnd(from.top_ids, num_tokens * num_log_probs, &to->top_ids);
  AppendEnd(from.top_log_probs, num_tokens * num_log_probs, &to->top_log_probs);
  to->finish = from.finish;
}

void Deliver(WorkerPool* thread, absl::AnyInvocable<void()> task) {
  if (thread == nullptr) {
    task();
  } else {
    thread->Enqueue(std::move(task));
  }
}

void EngineRun::Start(std::vector<InferenceRequest> requests) {
  {
    absl::MutexLock lock(&mutex_);
    num_open_ = requests.size();
  }
  RequestBatch work;
  for (size_t i = 0; i < requests.size(); ++i) {
    InferenceRequest& request = requests[i];
    if (!request.score && !request.sampling) {
      Complete(i, InferenceResult());
      continue;
    }
    if (events_.on_update && request.sampling) {
      const auto num_log_probs = static_cast<size_t>(request.sampling->num_log_probs);
      request.on_token = [run = shared_from_this(), i, num_log_probs](const GeneratedTokens& so_far,
                                                                      bool is_last) {
        ChoiceUpdate update = {.choice = i, .tokens = {}, .is_last = is_last};
        AppendLastTokens(so_far, 1, num_log_probs, &update.tokens);
        Deliver(run->delivery_, [run, update = std::move(update)]() mutable {
          run->events_.on_update(std::move(update));
        });
      };
    }
    work.emplace_back(std::move(request),
                      [run = shared_from_this(), i](absl::StatusOr<InferenceResult> result) {
                        run->Complete(i, std::move(result));
                      });
  }
  if (work.empty()) return;
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

void EngineRun::Complete(size_t choice, absl::StatusOr<InferenceResult> result) {
  const absl::Status error = result.status();
  if (result.ok() && events_.on_result) {
    Deliver(delivery_, [run = shared_from_this(), choice, result = *std::move(result)]() mutable {
      run->events_.on_result(choice, std::move(result));
    });
  }
  bool ended = false, cancel = false;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    if (!error.ok() && status_.ok()) {
      status_ = error;
      cancel = !std::exchange(cancelled_, true);
    }
    ended = --num_open_ == 0;
    status = status_;
  }
  if (ended) {
    Deliver(delivery_, [run = shared_from_this(), status] { run->events_.on_end(status); });
  } else if (cancel) {
    CancelOpen();
  }
}

}  // namespace taopd
