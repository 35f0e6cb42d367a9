#include "trainer/eval/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/base/random.h"

namespace taopd::testing {
namespace {

// By definition (Wilson, 1927) both ends p solve (share - p)^2 = z^2 p (1 - p) / n.
TEST(WilsonInterval, EndsSolveTheScoreEquation) {
  constexpr double kZ = 1.959963984540054;
  for (double trials : {1.0, 10.0, 400.0}) {
    for (double share : {0.0, 0.1, 0.5, 0.93, 1.0}) {
      const Interval interval = WilsonInterval(share * trials, trials);
      for (double p : {interval.low, interval.high}) {
        EXPECT_NEAR((share - p) * (share - p), kZ * kZ * p * (1 - p) / trials, 1e-14)
            << share << " of " << trials;
      }
      EXPECT_LE(interval.low, share + 1e-15);
      EXPECT_GE(interval.high, share - 1e-15);
      EXPECT_LT(interval.low, interval.high);
    }
  }
  EXPECT_EQ(WilsonInterval(0, 500).low, 0.0);  // exactly, although the sums leave 4e-19
  EXPECT_EQ(WilsonInterval(500, 500).high, 1.0);
  EXPECT_EQ(WilsonInterval(0, 0).low, 0.0);
  EXPECT_EQ(WilsonInterval(0, 0).high, 1.0);
}

// Compares with the definition: the share of all k-subsets of n responses, c of them right, that
// contain a right one.
TEST(PassAtK, CountsSubsets) {
  for (int n = 1; n <= 10; ++n) {
    for (int c = 0; c <= n; ++c) {
      for (int k = 1; k <= n; ++k) {
        int64_t subsets = 0, passing = 0;
        for (uint32_t mask = 0; mask < (1u << n); ++mask) {
          if (__builtin_popcount(mask) != k) continue;
          ++subsets;
          passing += (mask & ((1u << c) - 1)) != 0 ? 1 : 0;  // the first c are the right ones
        }
        EXPECT_NEAR(PassAtK(n, c, k), static_cast<double>(passing) / static_cast<double>(subsets),
                    1e-12);
      }
    }
  }
}

ResponseOutcome Outcome(const std::string& extracted, bool correct) {
  return {correct, extracted, false, 1};
}

TEST(MajorityIsCorrect, VotesTiesAndAbstentions) {
  EXPECT_TRUE(MajorityIsCorrect({Outcome("1", false), Outcome("2", true), Outcome("2", true)}));
  EXPECT_FALSE(MajorityIsCorrect({Outcome("1", false), Outcome("2", true), Outcome("1", false)}));
  EXPECT_FALSE(
      MajorityIsCorrect({Outcome("9", false), Outcome("2", true)}));  // a tie: the first one
  EXPECT_TRUE(MajorityIsCorrect({Outcome("2", true), Outcome("1", false)}));
  EXPECT_TRUE(MajorityIsCorrect({Outcome("", false), Outcome("", false), Outcome("2", true)}));
  EXPECT_FALSE(MajorityIsCorrect({Outcome("", false)}));
  EXPECT_FALSE(MajorityIsCorrect({}));
}

TEST(BootstrapInterval, IsSeededAndAboutTheNormalIntervalForLargeSamples) {
  RandomStream random(1);
  std::vector<double> values;
  for (int i = 0; i < 2000; ++i) values.push_back(random.NextUniform() < 0.3 ? 1.0 : 0.0);
  const double mean = Mean(values), error = 1.96 * std::sqrt(mean * (1 - mean) / 2000);
  const Interval interval = BootstrapInterval({values}, 5);
  // 2000 resamples locate a 2.5 % quantile to about 0.06 standard errors of the mean; a fifth of
  // `error` is 0.4 standard errors.
  EXPECT_NEAR(interval.low, mean - error, 0.2 * error);
  EXPECT_NEAR(interval.high, mean + error, 0.2 * error);
  EXPECT_EQ(BootstrapInterval({values}, 5).low, interval.low);
  EXPECT_NE(BootstrapInterval({values}, 6).low, interval.low);
}

TEST(BootstrapInterval, StrataCountTheSameWhateverTheirSize) {
  const std::vector<std::vector<double>> strata = {std::vector<double>(1000, 1.0), {0, 1, 0, 1}};
  const Interval interval = BootstrapInterval(strata, 5);
  EXPECT_LT(interval.low, 0.65);  // 0.5 + 0.5 * (0 to 1)
  EXPECT_GT(interval.high, 0.85);
  EXPECT_GE(interval.low, 0.5);
}

TEST(BootstrapInterval, AllRightOrAllWrongIsWilsons) {
  const Interval interval = BootstrapInterval({{0, 0, 0, 0, 0}}, 5);
  EXPECT_EQ(interval.low, 0.0);
  EXPECT_EQ(interval.high, WilsonInterval(0, 5).high);
  EXPECT_EQ(BootstrapInterval({{1, 1}, {1}}, 5).low, WilsonInterval(3, 3).low);
  EXPECT_EQ(BootstrapInterval({{0.25, 0.25}}, 5).high, 0.25);  // equal shares of Avg@n
}

}  // namespace
}  // namespace taopd::testing
