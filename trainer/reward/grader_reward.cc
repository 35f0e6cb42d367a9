#include "trainer/reward/grader_reward.h"

#include <utility>

namespace taopd {

absl::StatusOr<std::unique_ptr<RewardSource>> GraderReward::Make(const RewardConfig& config) {
  auto grader = grading::Grader::Make(config.grader, config.answer_pattern);
  if (!grader.ok()) return Annotate(grader.status(), "reward");
  return std::make_unique<GraderReward>(*std::move(grader), config.require_stop);
}

void GraderReward::Reward(std::vector<RewardSample> samples,
                          std::function<void(absl::StatusOr<std::vector<double>>)> done) {
  std::vector<double> rewards;
  for (const RewardSample& sample : samples) {
    const bool counts = !sample.answer.empty() && !(require_stop_ && sample.is_truncated);
    const bool is_right =
        counts && grader_->Grade(sample.response, sample.answer, sample.source).correct;
    rewards.push_back(is_right ? 1 : 0);
  }
  {
    absl::MutexLock lock(&mutex_);
    ++stats_.requests;
  }
  done(std::move(rewards));
}

RewardStats GraderReward::stats() const {
  absl::MutexLock lock(&mutex_);
  return stats_;
}

}  // namespace taopd
