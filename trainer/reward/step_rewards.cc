#include "trainer/reward/step_rewards.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace taopd {

std::vector<double> Advantages(const std::vector<double>& rewards, RewardBaseline baseline,
                               RewardScale scale) {
  if (baseline == RewardBaseline::kNone) return rewards;
  std::vector<double> advantages(rewards.size(), 0.0);
  const auto [low, high] = std::ranges::minmax_element(rewards);
  // The mean of equal numbers may be rounded.
  if (rewards.empty() || *low == *high) return advantages;
  const auto n = static_cast<double>(rewards.size());
  const double mean = std::accumulate(rewards.begin(), rewards.end(), 0.0) / n;
  double square = 0;
  for (const double reward : rewards) square += (reward - mean) * (reward - mean);
  double factor = 1;
  if (baseline == RewardBaseline::kLeaveOneOut) factor = n / (n - 1);
  if (scale == RewardScale::kStd) factor = 1 / (std::sqrt(square / (n - 1)) + kAdvantageEpsilon);
  for (size_t i = 0; i < rewards.size(); ++i) advantages[i] = factor * (rewards[i] - mean);
  return advantages;
}

RewardSample StepRewards::SampleOf(int64_t index, const Rollout& rollout) const {
  const PromptRecord& prompt = *prompts_[index];
  const Tokenizer& tokenizer = *options_.tokenizer;
  return {.id = Concat(name_, "-", index),
          .prompt = !prompt.prompt.empty()
                        ? prompt.prompt
                        : tokenizer.Decode(prompt.prompt_ids, /*skip_special_tokens=*/false),
          .response = tokenizer.Decode(rollout.response_ids),
          .answer = prompt.answer,
          .source = prompt.source,
          .is_truncated = rollout.finish != FinishReason::kStop};
}

std::optional<RewardGroup> StepRewards::AddRollout(int64_t index, const Rollout& rollout) {
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
