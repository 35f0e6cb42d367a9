#include "trainer/step/scored_batch.h"

#include <algorithm>
#include <utility>

namespace taopd {

ScoredBatch::ScoredBatch(TeacherClient* teacher, const SupportOptions& support, std::string name,
                         int64_t size)
    : teacher_(teacher),
      support_(support),
      name_(std::move(name)),
      items_(size),
      scored_(size, false),
      num_generating_(size) {}

std::shared_ptr<ScoredBatch> ScoredBatch::Start(RolloutEngine* engine, TeacherClient* teacher,
                                                std::vector<RolloutRequest> requests,
                                                const SupportOptions& support,
                                                const std::string& name) {
  std::shared_ptr<ScoredBatch> batch(
      new ScoredBatch(teacher, support, name, static_cast<int64_t>(requests.size())));
  engine->Generate(std::move(requests), [batch](int64_t index, absl::StatusOr<Rollout> rollout) {
    batch->OnRollout(index, std::move(rollout));
  });
  return batch;
}

void ScoredBatch::OnRollout(int64_t index, absl::StatusOr<Rollout> rollout) {
  {
    absl::MutexLock lock(&mutex_);
    --num_generating_;
    if (!rollout.ok()) {
      if (error_.ok()) error_ = Annotate(rollout.status(), Concat("rollout ", index));
      return;
    }
    if (!error_.ok()) return;  // the step has failed already: do not ask for more scores
    items_[index].rollout = *std::move(rollout);
    ++num_scoring_;
  }
  TeacherRequest request =
      MakeTeacherRequest(support_, items_[index].rollout, Concat(name_, "-", index));
  teacher_->Score(std::move(request),
                  [self = shared_from_this(), index](absl::StatusOr<TeacherScores> scores) {
                    self->OnScores(index, std::move(scores));
                  });
}

void ScoredBatch::OnScores(int64_t index, absl::StatusOr<TeacherScores> scores) {
  absl::Status status = scores.status();
  if (status.ok()) status = ReduceToSupport(support_, items_[index].rollout, &*scores);
  absl::MutexLock lock(&mutex_);
  --num_scoring_;
  if (!status.ok()) {
    if (error_.ok()) error_ = Annotate(status, Concat("teacher scores of rollout ", index));
    return;
  }
  items_[index].scores = *std::move(scores);
  scored_[index] = true;
}

absl::Status ScoredBatch::WaitScored(int64_t begin, int64_t end,
                                     const std::function<absl::Status()>& on_wait) {
  auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !error_.ok() ||
           std::all_of(scored_.begin() + begin, scored_.begin() + end, [](bool s) { return s; });
  };
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&ready), absl::Seconds(1))) return error_;
    }
    TAOPD_RETURN_IF_ERROR(on_wait());
  }
}

void ScoredBatch::WaitGenerated() {
  absl::MutexLock lock(&mutex_);
  auto generated = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_generating_ == 0; };
  mutex_.Await(absl::Condition(&generated));
}

void ScoredBatch::WaitIdle() {
  absl::MutexLock lock(&mutex_);
  auto idle = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return num_generating_ == 0 && num_scoring_ == 0;
  };
  mutex_.Await(absl::Condition(&idle));
}

}  // namespace taopd
