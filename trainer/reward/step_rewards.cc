#include "trainer/reward/step_rewards.h"

#include <utility>

#include "trainer/reward/advantage.h"

namespace taopd {

StepRewards::StepRewards(const StepRewardOptions& options, std::vector<const PromptRecord*> prompts,
                         int64_t group_size, std::string name)
    : options_(options),
      prompts_(std::move(prompts)),
      group_size_(group_size),
      name_(std::move(name)),
      rollouts_(prompts_.size(), nullptr),
      num_finished_(prompts_.size() / group_size, 0) {}

RewardSample StepRewards::SampleOf(int64_t index, const Rollout& rollout) const {
  const PromptRecord& prompt = *prompts_[index];
  const Tokenizer& tokenizer = *options_.tokenizer;
  RewardSample sample;
  sample.id = Concat(name_, "-", index);
  sample.prompt = !prompt.prompt.empty()
                      ? prompt.prompt
                      : tokenizer.Decode(prompt.prompt_ids, /*skip_special_tokens=*/false);
  sample.response = tokenizer.Decode(rollout.response_ids);
  sample.answer = prompt.answer;
  sample.source = prompt.source;
  sample.is_truncated = rollout.finish != FinishReason::kStop;
  return sample;
}

std::optional<RewardGroup> StepRewards::Finish(int64_t index, const Rollout& rollout) {
  const int64_t group = index / group_size_;
  std::vector<const Rollout*> rollouts;
  {
    absl::MutexLock lock(&mutex_);
    rollouts_[index] = &rollout;
    if (++num_finished_[group] < group_size_) return std::nullopt;
    const auto begin = rollouts_.begin() + group * group_size_;
    rollouts.assign(begin, begin + group_size_);
  }
  // Decoding takes time, and other threads need not wait for it.
  RewardGroup finished;
  finished.first = group * group_size_;
  for (int64_t i = 0; i < group_size_; ++i)
    finished.samples.push_back(SampleOf(finished.first + i, *rollouts[i]));
  return finished;
}

void StepRewards::Ask(RewardGroup group, std::function<void(absl::StatusOr<RewardedGroup>)> done) {
  options_.source->Reward(std::move(group.samples),
                          [baseline = options_.baseline, scale = options_.scale,
                           done = std::move(done)](absl::StatusOr<std::vector<double>> reply) {
                            if (!reply.ok()) return done(reply.status());
                            RewardedGroup rewarded;
                            rewarded.rewards = *std::move(reply);
                            rewarded.advantages = Advantages(rewarded.rewards, baseline, scale);
                            done(std::move(rewarded));
                          });
}

}  // namespace taopd
