#include "trainer/step/loss/forward_backward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/base/random.h"

namespace taopd::testing {
namespace {

// The documented width of a bin.
constexpr double kWidth = 1.16;

TEST(LogProbGaps, QuantilesAreThoseOfSortedGaps) {
  RandomStream random(5);
  LogProbGaps gaps;
  std::vector<double> all;
  double sum = 0;
  for (int i = 0; i < 2000; ++i) {
    const double gap = std::pow(10.0, -6 + 6 * random.NextUniform());
    gaps.Add(i % 2 == 0 ? gap : -gap);
    all.push_back(gap);
    sum += gap;
  }
  std::sort(all.begin(), all.end());
  EXPECT_DOUBLE_EQ(gaps.sum, sum);
  for (const double share : {0.5, 0.9, 0.99}) {
    const double exact = all[static_cast<size_t>(share * 2000) - 1];
    EXPECT_GE(gaps.Quantile(share), exact);
    EXPECT_LE(gaps.Quantile(share), exact * kWidth);
  }
}

TEST(LogProbGaps, NoGapsTinyGapsAndNotANumber) {
  LogProbGaps gaps;
  EXPECT_TRUE(std::isnan(gaps.Quantile(0.99)));
  gaps.Add(0);
  gaps.Add(1e-9);
  EXPECT_EQ(gaps.Quantile(0.99), 0);
  gaps.Add(NAN);
  EXPECT_GT(gaps.Quantile(0.99), 10);
}

}  // namespace
}  // namespace taopd::testing
