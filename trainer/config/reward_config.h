// The settings of rewards: who judges the responses of a step, and how a reward becomes the
// advantage that the objective policy_gradient reads (trainer/reward).
#pragma once

#include <cstdint>
#include <string>

#include "common/config/settings.h"

namespace taopd {

// The number subtracted from a reward. A response's group is the responses to its prompt.
enum class RewardBaseline { kNone, kGroup, kLeaveOneOut };
inline EnumNames<RewardBaseline> NamesOf(RewardBaseline) {
  return {{RewardBaseline::kNone, "none"},
          {RewardBaseline::kGroup, "group"},
          {RewardBaseline::kLeaveOneOut, "leave_one_out"}};
}
// The divisor of the difference.
enum class RewardScale { kNone, kStd };
inline EnumNames<RewardScale> NamesOf(RewardScale) {
  return {{RewardScale::kNone, "none"}, {RewardScale::kStd, "std"}};
}

// The section `reward`. There are rewards if `grader` or `url` is given.
struct RewardConfig {
  std::string grader;
  std::string answer_pattern;
  bool require_stop = true;
  std::string url;
  double weight = 1.0;
  RewardBaseline baseline = RewardBaseline::kGroup;
  RewardScale scale = RewardScale::kStd;
  double clip_low = 0;
  double clip_high = 0;
  double timeout_s = 60;
  double outage_budget_s = 1800;
  double connect_timeout_s = 60;
  int64_t max_in_flight = 16;
  std::string api_key_env;
  void Declare(SettingTable& keys);

  bool IsOn() const { return !grader.empty() || !url.empty(); }
};

// Returns INVALID_ARGUMENT, naming the setting, if the settings contradict each other or
// `num_responses`, the number of responses per prompt.
absl::Status CheckReward(const RewardConfig& reward, int64_t num_responses);

}  // namespace taopd
