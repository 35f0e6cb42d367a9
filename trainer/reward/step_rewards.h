// The rewards of a step's rollouts. The responses to a prompt are judged together, as soon as the
// last of them is generated, so judging overlaps generation and scoring. The advantages depend on
// the group alone, not on timing.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/text/tokenizer/tokenizer.h"
#include "trainer/config/reward_config.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/reward/reward_source.h"
#include "trainer/rollout/rollout_engine.h"

namespace taopd {

// Added to the standard deviation before the division, as in verl.
inline constexpr double kAdvantageEpsilon = 1e-6;

// Returns the advantages of the responses to one prompt, a group of n rewards r with mean m and
// sample standard deviation s (which divides by n - 1):
//
//   none                  r
//   group, none           r - m             Dr. GRPO (Liu et al. 2025, arXiv:2503.20783)
//   group, std            (r - m)/(s + kAdvantageEpsilon)
//                                           GRPO (Shao et al. 2024, arXiv:2402.03300)
//   leave_one_out         r - mean of the other n - 1 rewards
//                                           RLOO (Ahmadian et al. 2024, arXiv:2402.14740)
//
// In a group whose rewards are equal, every advantage with a baseline is exactly 0. The mean of the
// policy gradient with `none` or `leave_one_out` is the gradient of the expected reward; with
// `group` and without a scale it is (n - 1)/n of that, because m contains r itself.
// REQUIRES: the settings passed CheckReward.
std::vector<double> Advantages(const std::vector<double>& rewards, RewardBaseline baseline,
                               RewardScale scale);

// Owns nothing; everything it points to must outlive the step's callbacks.
struct StepRewardOptions {
  RewardSource* source = nullptr;
  const Tokenizer* tokenizer = nullptr;  // the student's
  RewardBaseline baseline = RewardBaseline::kGroup;
  RewardScale scale = RewardScale::kStd;
};

// The responses to one prompt, which begin with rollout `first`.
struct RewardGroup {
  int64_t first = 0;
  std::vector<RewardSample> samples;
};

struct RewardedGroup {
  std::vector<double> rewards;
  std::vector<double> advantages;
};

// Any thread may call it.
class StepRewards {
 public:
  // `prompts` are those of the rollouts, in groups of `group_size` rollouts of one prompt. The
  // samples' ids begin with `name`.
  StepRewards(const StepRewardOptions& options, std::vector<const PromptRecord*> prompts,
              int64_t group_size, std::string name)
      : options_(options),
        prompts_(std::move(prompts)),
        group_size_(group_size),
        name_(std::move(name)),
        rollouts_(prompts_.size(), nullptr),
        num_finished_(prompts_.size() / group_size, 0) {}

  // Records a finished rollout, which must live as long as this object. Returns the group, if
  // this was its last rollout.
  std::optional<RewardGroup> AddRollout(int64_t index, const Rollout& rollout);
  // Judges a group.
  void Ask(RewardGroup group, std::function<void(absl::StatusOr<RewardedGroup>)> done);
  int64_t group_size() const { return group_size_; }

 private:
  RewardSample SampleOf(int64_t index, const Rollout& rollout) const;

  const StepRewardOptions options_;
  const std::vector<const PromptRecord*> prompts_;
  const int64_t group_size_;
  const std::string name_;
  absl::Mutex mutex_;
  std::vector<const Rollout*> rollouts_ ABSL_GUARDED_BY(mutex_);
  std::vector<int64_t> num_finished_ ABSL_GUARDED_BY(mutex_);  // of each group
};

}  // namespace taopd
