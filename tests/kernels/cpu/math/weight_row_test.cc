// The loops of sampling against plain float64 loops, for every instruction set of this processor.
#include "kernels/cpu/math/weight_row.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/kernels/cpu/supported_sets.h"

namespace taopd::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<int64_t> RowSizes() {
  std::vector<int64_t> sizes = {1023, 1024, 1025, 1041, 5000};
  for (int64_t n = 1; n <= 40; ++n) sizes.push_back(n);
  return sizes;
}

// Returns a row with some -inf and equal numbers.
std::vector<float> LogitRow(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 9);
  std::vector<float> row(n);
  for (float& z : row) {
    z = normal(random);
    if (random() % 8 == 0) z = -kInfinity;
    if (random() % 8 == 0) z = 1.25f;
  }
  return row;
}

class WeightRowTest : public ::testing::TestWithParam<InstructionSet> {
 protected:
  const WeightRow& math_ = WeightRowOf(GetParam());
};

TEST_P(WeightRowTest, MaxAndLaneMaxima) {
  for (const int64_t n : RowSizes()) {
    const std::vector<float> row = LogitRow(n, n);
    std::vector<float> lanes(NumWeightBlocks(n) * kWeightLanes + 1, 7.0f);
    bool valid = false;
    EXPECT_EQ(math_.max(row.data(), n, lanes.data(), &valid),
              *std::max_element(row.begin(), row.end()));
    EXPECT_TRUE(valid);
    EXPECT_EQ(lanes.back(), 7.0f);
    std::vector<float> expected(lanes.size() - 1, -kInfinity);
    for (int64_t v = 0; v < n; ++v) {
      float& lane = expected[v / kWeightBlock * kWeightLanes + v % kWeightLanes];
      lane = std::max(lane, row[v]);
    }
    lanes.pop_back();
    EXPECT_EQ(lanes, expected);
  }
}

TEST_P(WeightRowTest, MaxSeesEveryNumberThatIsNotValid) {
  for (const int64_t n : {1, 16, 17, 1030}) {
    for (int64_t at = 0; at < n; ++at) {
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
        std::vector<float> row(n, 1.0f);
        row[at] = bad;
        std::vector<float> lanes(NumWeightBlocks(n) * kWeightLanes);
        bool valid = true;
        math_.max(row.data(), n, lanes.data(), &valid);
        EXPECT_FALSE(valid) << n << " " << at;
      }
    }
  }
}

TEST_P(WeightRowTest, WeightsAndTheirSums) {
  for (const int64_t n : RowSizes()) {
    for (const float scale : {1.0f, 0.25f, 3.0f, 1e38f}) {
      const std::vector<float> row = LogitRow(n, n + 1);
      float shift = *std::max_element(row.begin(), row.end());
      if (std::isinf(shift)) shift = 0.0f;
      std::vector<float> weights(n + 1, 7.0f);
      std::vector<double> sums(NumWeightBlocks(n)), sums_only(NumWeightBlocks(n));
      math_.weights(row.data(), n, shift, scale, weights.data(), sums.data());
      math_.weights(row.data(), n, shift, scale, nullptr, sums_only.data());
      EXPECT_EQ(sums, sums_only);
      EXPECT_EQ(weights[n], 7.0f);
      std::vector<double> expected(sums.size()), slack(sums.size());
      for (int64_t v = 0; v < n; ++v) {
        const double x = static_cast<double>(row[v] - shift) * scale;
        const double weight = std::exp(x);
        expected[v / kWeightBlock] += weight;
        // The argument of 2^y has its own relative error: two roundings and a constant.
        const double tolerance = (2.4e-7 + 2.5e-7 * std::abs(x)) * weight;
        slack[v / kWeightBlock] += (weight > 0 ? tolerance : 0) + 1.2e-38;
        EXPECT_NEAR(weights[v], weight, x > -87.0 ? tolerance : 1.2e-38);
        if (x < -88.5) {
          EXPECT_EQ(weights[v], 0.0f);
        }
        if (row[v] == shift) {
          EXPECT_EQ(weights[v], 1.0f);
        }
      }
      for (size_t b = 0; b < sums.size(); ++b)
        EXPECT_NEAR(sums[b], expected[b], slack[b] + 1e-6 * expected[b]);
    }
  }
}

TEST_P(WeightRowTest, SplitAndWeightAtLeast) {
  for (const int64_t n : RowSizes()) {
    const std::vector<float> row = LogitRow(n, n + 2);
    std::vector<float> weights(n);
    for (int64_t v = 0; v < n; ++v) weights[v] = static_cast<float>(v % 7 + 1);
    for (const auto& [low, high] :
         {std::pair{-3.0f, 4.0f}, {1.25f, 1.5f}, {-kInfinity, kInfinity}, {2.0f, 2.0f}}) {
      double at_least = 0;
      std::vector<double> above(NumWeightBlocks(n)), band(above);
      std::vector<int32_t> places;
      for (int64_t v = 0; v < n; ++v) {
        if (row[v] >= low) at_least += weights[v];
        if (row[v] >= high) above[v / kWeightBlock] += weights[v];
        if (row[v] < low || row[v] >= high) continue;
        band[v / kWeightBlock] += weights[v];
        places.push_back(static_cast<int32_t>(v));
      }
      EXPECT_EQ(math_.weight_at_least(row.data(), weights.data(), n, low), at_least);
      for (const int64_t capacity : {int64_t{0}, int64_t{3}, n}) {
        std::vector<double> above_sums(above.size()), band_sums(above.size());
        std::vector<int32_t> found(capacity + kWeightLanes + 1, -7);
        const int64_t count =
            math_.split({row.data(), weights.data(), n, low, high, above_sums.data(),
                         band_sums.data(), found.data(), capacity});
        EXPECT_EQ(count, static_cast<int64_t>(places.size()));
        EXPECT_EQ(above_sums, above);
        EXPECT_EQ(band_sums, band);
        EXPECT_EQ(found.back(), -7);
        for (int64_t i = 0; i < std::min(capacity, count); ++i) EXPECT_EQ(found[i], places[i]);
      }
    }
  }
}

// Every instruction set does the same arithmetic.
TEST_P(WeightRowTest, BitsOfTheBaseSet) {
  const WeightRow& base = WeightRowOf(InstructionSet::kBase);
  for (const int64_t n : RowSizes()) {
    const std::vector<float> row = LogitRow(n, n + 3);
    std::vector<float> weights(n), base_weights(n);
    std::vector<double> sums(NumWeightBlocks(n)), base_sums(NumWeightBlocks(n));
    math_.weights(row.data(), n, 30.0f, 0.7f, weights.data(), sums.data());
    base.weights(row.data(), n, 30.0f, 0.7f, base_weights.data(), base_sums.data());
    EXPECT_EQ(weights, base_weights);
    EXPECT_EQ(sums, base_sums);
    EXPECT_EQ(math_.weight_at_least(row.data(), weights.data(), n, 0.5f),
              base.weight_at_least(row.data(), weights.data(), n, 0.5f));
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, WeightRowTest, ::testing::ValuesIn(taopd::testing::SupportedSets()),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace taopd::cpu
