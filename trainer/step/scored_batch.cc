#include "trainer/step/scored_batch.h"

#include <algorithm>
#include <utility>

namespace taopd {

ScoredBatch::ScoredBatch(TeacherClient* teacher, const ScoringParams& params, std::string name, int64_t size)
    : teacher_(teacher), params_(params), name_(std::move(name)), items_(size), scored_(size, false),
      num_generating_(size) {}

std::shared_ptr<ScoredBatch> ScoredBatch::Start(RolloutEngine* engine, TeacherClient* teacher,
                                                std::vector<RolloutRequest> requests, const ScoringParams& params,
                                                const std::string& name) {
  std::shared_ptr<ScoredBatch> batch(
      new ScoredBatch(teacher, params, name, static_cast<int64_t>(requests.size())));
  engine->Generate(std::move(requests), [batch](int64_t index, absl::StatusOr<Rollout> rollout) {
    batch->OnRollout(index, std::move(rollout));
  });
  return batch;
}

void ScoredBatch::OnRollout(int64_t index, absl::StatusOr<Rollout> rollout) {
  TeacherRequest request;
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
  const Rollout& finished = items_[index].rollout;
  request.request_id = Concat(name_, "-", index);
  request.token_ids = finished.prompt_ids;
  request.token_ids.insert(request.token_ids.end(), finished.response_ids.begin(), finished.response_ids.end());
  request.score_start = static_cast<int64_t>(finished.prompt_ids.size());
  request.top_k = params_.top_k;
  request.temperature = params_.temperature;
  teacher_->Score(std::move(request), [self = shared_from_this(), index](absl::StatusOr<TeacherScores> scores) {
    self->OnScores(index, std::move(scores));
  });
}

void ScoredBatch::OnScores(int64_t index, absl::StatusOr<TeacherScores> scores) {
  absl::Status status = scores.status();
  if (status.ok()) status = Verify(index, *scores);
  absl::MutexLock lock(&mutex_);
  --num_scoring_;
  if (!status.ok()) {
    if (error_.ok()) error_ = Annotate(status, Concat("teacher scores of rollout ", index));
    return;
  }
  items_[index].scores = *std::move(scores);
  scored_[index] = true;
}

absl::Status ScoredBatch::Verify(int64_t index, const TeacherScores& scores) const {
  const auto num_rows = items_[index].rollout.response_ids.size();
  if (scores.sampled_log_probs.size() != num_rows || scores.log_tail.size() != num_rows ||
      scores.ids.size() != num_rows * static_cast<size_t>(params_.top_k) || scores.ids.size() != scores.log_probs.size()) {
    return DataLoss("got scores of ", scores.sampled_log_probs.size(), " rows for a response of ", num_rows, " tokens");
  }
  const auto beyond = std::find_if(scores.ids.begin(), scores.ids.end(),
                                   [&](int32_t id) { return id < 0 || id >= params_.vocab_size; });
  if (beyond != scores.ids.end()) {
    return FailedPrecondition("the teacher's token id ", *beyond, " is beyond the student's vocabulary of ",
                              params_.vocab_size);
  }
  return absl::OkStatus();
}

absl::Status ScoredBatch::WaitScored(int64_t begin, int64_t end, const std::function<absl::Status()>& on_wait) {
  auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !error_.ok() || std::all_of(scored_.begin() + begin, scored_.begin() + end, [](bool s) { return s; });
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
  auto idle = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_generating_ == 0 && num_scoring_ == 0; };
  mutex_.Await(absl::Condition(&idle));
}

}  // namespace taopd
