#include "trainer/commands/train/setup/rewards.h"

#include <algorithm>

#include "trainer/reward/grader_reward.h"
#include "trainer/reward/http_reward.h"

namespace taopd {

absl::StatusOr<std::unique_ptr<RewardSource>> MakeRewardSource(const RewardConfig& config) {
  if (!config.url.empty()) return HttpReward::Make(config);
  if (!config.grader.empty()) return GraderReward::Make(config);
  return std::unique_ptr<RewardSource>();
}

absl::Status ConnectRewards(const RewardConfig& config, const Student& student,
                            const std::vector<PromptRecord>& prompts, RewardSource* source) {
  if (source == nullptr) return absl::OkStatus();
  if (student.tokenizer == nullptr) {
    return InvalidArgument(
        "reward: the text of a response needs a tokenizer.json in the student's directory");
  }
  const bool has_answer = std::any_of(prompts.begin(), prompts.end(),
                                      [](const PromptRecord& one) { return !one.answer.empty(); });
  if (!config.grader.empty() && !has_answer) {
    return InvalidArgument("reward.grader = ", config.grader,
                           ": no row of data.train has an answer (data.answer_key)");
  }
  return Annotate(source->Connect(absl::Seconds(config.connect_timeout_s)), "reward");
}

StepRewardOptions MakeStepRewardOptions(const RewardConfig& config, const Student& student,
                                        RewardSource* source) {
  return {source, student.tokenizer.get(), config.baseline, config.scale};
}

}  // namespace taopd
