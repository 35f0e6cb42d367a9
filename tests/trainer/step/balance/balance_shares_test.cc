#include "trainer/step/balance/balance_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "common/base/random.h"
#include "tests/trainer/step/small_model.h"

namespace taopd::testing {
namespace {

using Lists = std::vector<std::vector<int64_t>>;

double LoadOf(const std::vector<int64_t>& share, const std::vector<double>& costs) {
  double load = 0;
  for (const int64_t sequence : share) load += costs[sequence];
  return load;
}

double Highest(const Lists& shares, const std::vector<double>& costs) {
  double highest = 0;
  for (const auto& share : shares) highest = std::max(highest, LoadOf(share, costs));
  return highest;
}

TEST(BalanceShares, EvenSharesStayAsTheyAre) {
  EXPECT_EQ(BalanceShares({{0, 1}, {2, 3}}, {3, 5, 4, 4}), (Lists{{0, 1}, {2, 3}}));
  EXPECT_EQ(BalanceShares({{0, 1, 2}}, {1, 2, 3}), (Lists{{0, 1, 2}}));
  EXPECT_EQ(BalanceShares({}, {}), Lists());
}

TEST(BalanceShares, MovesAndExchanges) {
  EXPECT_EQ(BalanceShares({{0, 1, 2}, {3}}, {2, 3, 2, 1}), (Lists{{0, 2}, {1, 3}}));
  // No move lowers the maximum, but an exchange does.
  EXPECT_EQ(BalanceShares({{0, 1}, {2, 3}}, {10, 10, 7, 7}), (Lists{{1, 2}, {0, 3}}));
  // A share keeps a sequence, however long.
  EXPECT_EQ(BalanceShares({{0}, {1, 2}}, {100, 1, 1}), (Lists{{0}, {1, 2}}));
}

TEST(BalanceShares, EverySequenceOnceAndNoShareMuchLongerThanTheMean) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    RandomStream random(seed);
    const size_t num_shares = 2 + random.NextBelow(7), of_share = 8;
    std::vector<double> costs(num_shares * of_share);
    for (double& cost : costs) cost = 1 + 99 * random.NextUniform();
    Lists shares(num_shares);
    for (size_t i = 0; i < costs.size(); ++i) shares[i / of_share].push_back(i);
    const Lists balanced = BalanceShares(shares, costs);
    std::vector<int64_t> all;
    for (const auto& share : balanced) {
      EXPECT_TRUE(std::is_sorted(share.begin(), share.end()));
      all.insert(all.end(), share.begin(), share.end());
    }
    std::sort(all.begin(), all.end());
    std::vector<int64_t> expected(costs.size());
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(all, expected);
    const double mean = std::accumulate(costs.begin(), costs.end(), 0.0) / num_shares;
    EXPECT_LT(Highest(balanced, costs), 1.05 * mean) << seed;
    EXPECT_LE(Highest(balanced, costs), Highest(shares, costs));
  }
}

TEST(SequenceCost, GrowsFasterThanTheLength) {
  const ModelConfig config = SmallModel();
  // A token: 2 H (Q + K) + 3 H I in each layer; a response token V H; attention Q T^2.
  EXPECT_EQ(SequenceCost(config, 10, 4), 4 * 256 + 2 * (10 * (16 * 12 + 24 * 16) + 100 * 8));
  EXPECT_GT(SequenceCost(config, 20, 8), 2 * SequenceCost(config, 10, 4));
}

}  // namespace
}  // namespace taopd::testing
