#include "trainer/reward/advantage.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace taopd {

std::vector<double> Advantages(const std::vector<double>& rewards, RewardBaseline baseline,
                               RewardScale scale) {
  if (baseline == RewardBaseline::kNone) return rewards;
  std::vector<double> advantages(rewards.size(), 0.0);
  const auto [low, high] = std::minmax_element(rewards.begin(), rewards.end());
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

}  // namespace taopd
