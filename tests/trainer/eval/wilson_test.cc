#include "trainer/eval/wilson.h"

#include <gtest/gtest.h>

namespace taopd {
namespace {

// The definition (Wilson, 1927): both ends p solve (share - p)^2 = z^2 p (1 - p) / n.
TEST(WilsonInterval, EndsSolveTheScoreEquation) {
  constexpr double kZ = 1.959963984540054;
  for (double trials : {1.0, 10.0, 400.0}) {
    for (double share : {0.0, 0.1, 0.5, 0.93, 1.0}) {
      const Interval interval = WilsonInterval(share * trials, trials);
      for (double p : {interval.low, interval.high}) {
        EXPECT_NEAR((share - p) * (share - p), kZ * kZ * p * (1 - p) / trials, 1e-14) << share << " of " << trials;
      }
      EXPECT_LE(interval.low, share + 1e-15);
      EXPECT_GE(interval.high, share - 1e-15);
      EXPECT_LT(interval.low, interval.high);
    }
  }
  EXPECT_EQ(WilsonInterval(0, 0).low, 0.0);
  EXPECT_EQ(WilsonInterval(0, 0).high, 1.0);
}

}  // namespace
}  // namespace taopd
