#include "trainer/report/charts/plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace taopd::report {
namespace {

constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();

TEST(Smoothed, AveragesTheFiniteNeighbors) {
  const Series series = {{1, 3}, {2, 6}, {3, kNoValue}, {4, 2}, {5, 4}, {6, 9}};
  const Series smoothed = Smoothed(series, 3, false);
  const std::vector<double> expected = {4.5, 4.5, kNoValue, 3, 5, 6.5};
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(smoothed[i].step, series[i].step);
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(smoothed[i].value));
    } else {
      EXPECT_DOUBLE_EQ(smoothed[i].value, expected[i]);
    }
  }
}

TEST(Smoothed, GeometricLeavesOutWhatHasNoLogarithm) {
  const Series smoothed = Smoothed({{1, 1}, {2, 100}, {3, 0}}, 3, true);
  EXPECT_NEAR(smoothed[0].value, 10, 1e-12);
  EXPECT_NEAR(smoothed[1].value, 10, 1e-12);
  EXPECT_TRUE(std::isnan(smoothed[2].value));
}

TEST(SmoothingWindow, IsOddAndOneForShortSeries) {
  EXPECT_EQ(SmoothingWindow(39), 1);
  for (const size_t n : {40, 61, 200, 1000, 1000000}) {
    EXPECT_EQ(SmoothingWindow(n) % 2, 1);
    EXPECT_GT(SmoothingWindow(n), 1);
    EXPECT_LE(SmoothingWindow(n), 203);
  }
}

TEST(Decimated, KeepsSpikesEndsAndGaps) {
  Series series;
  for (int64_t step = 0; step < 100000; ++step) series.push_back({step, 1 + 1e-6 * (step % 7)});
  series[41234].value = 50;
  series[51234].value = -50;
  series[61234].value = kNoValue;
  const Series kept = Decimated(series, 300);
  EXPECT_LE(kept.size(), 610u);
  EXPECT_EQ(kept.front().step, 0);
  EXPECT_EQ(kept.back().step, 99999);
  bool spike = false, dip = false, gap = false;
  for (size_t i = 0; i < kept.size(); ++i) {
    ASSERT_TRUE(i == 0 || kept[i].step > kept[i - 1].step);
    spike |= kept[i].step == 41234 && kept[i].value == 50;
    dip |= kept[i].step == 51234 && kept[i].value == -50;
    gap |= kept[i].step == 61234 && std::isnan(kept[i].value);
  }
  EXPECT_TRUE(spike && dip && gap);
  // Short series stay as they are.
  EXPECT_EQ(Decimated({{0, 1}, {5, kNoValue}, {9, 2}}, 2).size(), 3u);
}

TEST(Thinned, KeepsEvenlySpacedPointsAndTheLast) {
  Series series;
  for (int64_t i = 0; i < 12; ++i) series.push_back({i, 0});
  const Series kept = Thinned(series, 5);
  ASSERT_EQ(kept.size(), 5u);
  EXPECT_EQ(kept[1].step, 3);
  EXPECT_EQ(kept[4].step, 11);
  EXPECT_EQ(Thinned(series, 20).size(), 12u);
}

}  // namespace
}  // namespace taopd::report
