// Compares the kept set and the draw with sorting everything in float64, on rows on which a search
// by a sample of the row can go wrong.
#include "common/engine/sampling/truncation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "common/base/random.h"
#include "common/base/status.h"
#include "kernels/cpu/math/weight_row.h"

namespace taopd::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// The tolerance of sums of float32 weights.
constexpr double kSumTolerance = 2e-6;

enum Shape { kEqual, kNearlyFlat, kNormal, kWide, kTies, kPeaked, kMostlyForbidden, kAscending };
constexpr int kNumShapes = kAscending + 1;

std::vector<float> Row(int shape, int64_t size, uint64_t seed) {
  RandomStream random(seed, "row");
  std::vector<float> row(size);
  for (int64_t v = 0; v < size; ++v) {
    const double normal = random.NextNormal();
    double logit = normal;
    if (shape == kEqual) logit = -1.5;
    if (shape == kNearlyFlat) logit = 0.001 * normal;
    if (shape == kWide) logit = 8.0 * normal;
    if (shape == kTies) logit = std::round(2.0 * normal) / 2.0;
    if (shape == kPeaked) logit = v % 1000 == 7 ? 20.0 + normal : normal;
    if (shape == kMostlyForbidden && random.NextUniform() < 0.95) logit = -INFINITY;
    if (shape == kAscending) logit = 10.0 * static_cast<double>(v) / static_cast<double>(size);
    row[v] = static_cast<float>(logit);
  }
  row[size / 2] = std::max(row[size / 2], -1.5f);  // finite
  return row;
}

// The kept ids, found by sorting. `slack` marks the ids at top_p's border, which rounding may keep
// or not.
struct Kept {
  std::vector<double> p;  // 0 for ids that are not kept
  std::vector<bool> slack;
};

Kept Oracle(const std::vector<float>& logits, const SamplingParams& params) {
  const size_t size = logits.size();
  const double max = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p(size);
  for (size_t v = 0; v < size; ++v) p[v] = std::exp((logits[v] - max) / params.temperature);
  std::vector<int32_t> order(size);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  Kept kept{std::vector<double>(size), std::vector<bool>(size)};
  size_t num = 0;
  for (; num < size && p[order[num]] >= params.min_p * (1 - 1e-6); ++num) {
    const double of_max = p[order[num]];
    kept.slack[order[num]] = of_max < 1.0 && of_max < params.min_p * (1 + 1e-6);
  }
  if (params.top_k > 0) num = std::min<size_t>(num, params.top_k);
  double mass = 0.0;
  for (size_t j = 0; j < num; ++j) mass += p[order[j]];
  double cumulative = 0.0;
  for (size_t j = 0; j < num; ++j) {
    const double target = params.top_p * mass;
    const double before = cumulative;
    cumulative += p[order[j]];
    if (std::abs(before - target) < kSumTolerance * mass && params.top_p < 1.0f)
      kept.slack[order[j]] = true;
    if (before < target || params.top_p >= 1.0f) kept.p[order[j]] = p[order[j]];
  }
  const double sum = std::accumulate(kept.p.begin(), kept.p.end(), 0.0);
  for (double& x : kept.p) x /= sum;
  return kept;
}

struct Scratch {
  std::vector<float> weights, lane_max;
  std::vector<double> sums;
};

WeightedRow Weighted(const std::vector<float>& logits, float temperature, Scratch* scratch) {
  const cpu::WeightRow& math = cpu::WeightRowOf(cpu::WidestInstructionSet());
  const auto size = static_cast<int64_t>(logits.size());
  scratch->weights.resize(size);
  scratch->lane_max.resize(cpu::NumWeightBlocks(size) * cpu::kWeightLanes);
  scratch->sums.resize(cpu::NumWeightBlocks(size));
  bool valid = false;
  const float max = math.max(logits.data(), size, scratch->lane_max.data(), &valid);
  math.weights(logits.data(), size, max, 1.0f / temperature, scratch->weights.data(),
               scratch->sums.data());
  const double total = std::accumulate(scratch->sums.begin(), scratch->sums.end(), 0.0);
  return {logits, scratch->weights, scratch->lane_max, scratch->sums, total, max};
}

void ExpectDrawsFromKept(const std::vector<float>& logits, const SamplingParams& params,
                         RowTruncation* truncation) {
  const Kept kept = Oracle(logits, params);
  std::vector<double> cdf(logits.size());
  std::partial_sum(kept.p.begin(), kept.p.end(), cdf.begin());
  Scratch scratch;
  truncation->Apply(Weighted(logits, params.temperature, &scratch), params);
  // The slack ids may shift the cumulative sum by this much.
  double tolerance = 5e-6;
  for (size_t v = 0; v < logits.size(); ++v) tolerance += kept.slack[v] ? kept.p[v] + 1e-6 : 0.0;
  for (int i = 0; i < 40; ++i) {
    const double uniform = i == 0 ? 1e-15 : i == 39 ? 1 - 1e-15 : (i + 0.5) / 40;
    const int32_t id = truncation->Draw(uniform);
    ASSERT_GE(id, 0);
    ASSERT_LT(id, static_cast<int32_t>(logits.size()));
    ASSERT_TRUE(kept.p[id] > 0.0 || kept.slack[id]) << "id " << id << " was cut and drawn";
    ASSERT_LE(cdf[id] - kept.p[id], uniform + tolerance);
    ASSERT_GE(cdf[id], uniform - tolerance);
  }
}

TEST(RowTruncation, KeepsWhatSortingKeeps) {
  RowTruncation truncation(cpu::WeightRowOf(cpu::WidestInstructionSet()));
  RandomStream random(41, "truncation");
  for (const int64_t size : {1, 5, 100, 1023, 1025, 5000, 20011}) {
    for (int shape = 0; shape < kNumShapes; ++shape) {
      const std::vector<float> logits = Row(shape, size, 10 * size + shape);
      for (int i = 0; i < 14; ++i) {
        SamplingParams params;
        const auto pick = [&](std::initializer_list<double> of) {
          return of.begin()[random.NextBelow(of.size())];
        };
        params.temperature = static_cast<float>(pick({1.0, 0.3, 4.0}));
        params.min_p = static_cast<float>(pick({0.0, 0.0, 0.001, 0.1, 1.0}));
        params.top_k = static_cast<int32_t>(pick({0, 0, 1, 50, 700, 6000}));
        params.top_p = static_cast<float>(pick({1.0, 0.1, 0.5, 0.9, 0.95, 0.999}));
        SCOPED_TRACE(Concat("size ", size, " shape ", shape, " temperature ", params.temperature,
                            " min_p ", params.min_p, " top_k ", params.top_k, " top_p ",
                            params.top_p));
        ExpectDrawsFromKept(logits, params, &truncation);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// The result is exact, because the weights are powers of two.
TEST(RowTruncation, TopPKeepsAsFewAsPossibleAndLowerIdsAmongEquals) {
  const float log_2 = std::log(2.0f);
  for (const int64_t size : {4, 6000}) {  // collected, and searched
    std::vector<float> logits(size, -kInfinity);
    for (int64_t v = 0; v < size; ++v) logits[v] = size == 4 ? 0.0f : -log_2;
    SamplingParams params = {.top_p = 0.5f};
    Scratch scratch;
    RowTruncation truncation(cpu::WeightRowOf(cpu::WidestInstructionSet()));
    truncation.Apply(Weighted(logits, 1.0f, &scratch), params);
    EXPECT_EQ(truncation.Draw(1 - 1e-12), size / 2 - 1);
    params.top_p = 1.0f;
    params.top_k = static_cast<int32_t>(size / 4);
    truncation.Apply(Weighted(logits, 1.0f, &scratch), params);
    EXPECT_EQ(truncation.Draw(1 - 1e-12), size / 4 - 1);
  }
}

}  // namespace
}  // namespace taopd::testing
