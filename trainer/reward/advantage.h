// From rewards to advantages: how much better than its baseline a response is.
#pragma once

#include <vector>

#include "trainer/config/reward_config.h"

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
// policy gradient with `none` or `leave_one_out` is that of the expected reward; with `group` and
// without a scale it is (n - 1)/n of it, because m contains r itself.
// REQUIRES: the settings passed CheckReward.
std::vector<double> Advantages(const std::vector<double>& rewards, RewardBaseline baseline,
                               RewardScale scale);

}  // namespace taopd
