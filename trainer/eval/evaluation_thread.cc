#include "trainer/eval/evaluation_thread.h"

#include <utility>

namespace taopd {

EvaluationThread::EvaluationThread(Measure measure)
    : thread_([this, measure = std::move(measure)] {
        absl::StatusOr<EvalResult> result = measure(
            [this](const absl::StatusOr<std::string>& mine) { return WaitForExchange(mine); },
            [this] {
              absl::MutexLock lock(&mutex_);
              return cancelled_;
            });
        absl::MutexLock lock(&mutex_);
        result_ = std::move(result);
      }) {}

EvaluationThread::~EvaluationThread() {
  Cancel(absl::CancelledError("the evaluation is abandoned"));
  {
    absl::MutexLock lock(&mutex_);
    if (!all_outcomes_) all_outcomes_ = absl::StatusOr<std::vector<std::string>>(cancelled_);
  }
  thread_.join();
}

absl::StatusOr<std::vector<std::string>> EvaluationThread::WaitForExchange(
    const absl::StatusOr<std::string>& mine) {
  absl::MutexLock lock(&mutex_);
  own_outcome_ = mine;
  const auto is_exchanged = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return all_outcomes_.has_value();
  };
  mutex_.Await(absl::Condition(&is_exchanged));
  return *all_outcomes_;
}

bool EvaluationThread::IsReady(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return is_ready(); };
  return mutex_.AwaitWithTimeout(absl::Condition(&ready), timeout);
}

void EvaluationThread::Cancel(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  cancelled_.Update(why);
}

absl::StatusOr<EvalResult> EvaluationThread::Take(const Exchange& exchange) {
  if (exchange) {
    absl::StatusOr<std::string> mine = Internal("the evaluation has ended without its exchange");
    {
      absl::MutexLock lock(&mutex_);
      if (own_outcome_) {
        mine = *own_outcome_;
      } else if (!result_->ok()) {
        mine = result_->status();
      }
    }
    absl::StatusOr<std::vector<std::string>> all = exchange(mine);
    absl::MutexLock lock(&mutex_);
    all_outcomes_ = std::move(all);
  }
  absl::MutexLock lock(&mutex_);
  const auto has_ended = [this]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return result_.has_value(); };
  mutex_.Await(absl::Condition(&has_ended));
  return *std::move(result_);
}

}  // namespace taopd
