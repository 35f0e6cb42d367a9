// Summaries of rows against plain loops in double.
#include "kernels/torch/sampling/row_candidates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "common/base/status.h"
#include "tests/kernels/torch/random_tensor.h"

namespace taopd::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Sums in float64 in another order.
constexpr double kSumTolerance = 1e-12;

// Expects the candidates to be the largest logits and the named ids, and the rest to be summed.
void ExpectSummary(const at::Tensor& logits_V, const RowToSummarize& row,
                   const RowCandidates& actual) {
  const int64_t size = logits_V.size(0);
  const float* const logits = logits_V.const_data_ptr<float>();
  const std::vector<int32_t>& ids = actual.ids;
  ASSERT_TRUE(std::is_sorted(ids.begin(), ids.end(), std::less_equal<>()));  // no id twice
  ASSERT_GE(ids.size(), std::min(size, kTopCandidates));
  for (const int32_t id : row.ids) EXPECT_TRUE(std::binary_search(ids.begin(), ids.end(), id));
  const double temperature = row.temperature == 0 ? 1.0 : row.temperature;
  double sum = 0, raw_sum = 0;
  float max = -kInfinity;
  size_t place = 0;
  for (int64_t v = 0; v < size; ++v) {
    if (place < ids.size() && ids[place] == v) {
      EXPECT_EQ(actual.logits[place], logits[v]);
      EXPECT_NEAR(actual.rest_sums_before[place], sum, kSumTolerance * static_cast<double>(size));
      ++place;
      continue;
    }
    max = std::max(max, logits[v]);
    if (logits[v] == -kInfinity) continue;
    sum += std::exp((static_cast<double>(logits[v]) - actual.rest_max) / temperature);
    raw_sum += std::exp(static_cast<double>(logits[v]) - actual.rest_max);
  }
  ASSERT_EQ(place, ids.size());
  EXPECT_EQ(actual.rest_max, max);
  EXPECT_NEAR(actual.rest_sum, sum, kSumTolerance * static_cast<double>(size));
  EXPECT_NEAR(actual.raw_rest_sum, raw_sum, kSumTolerance * static_cast<double>(size));
  EXPECT_GE(
      std::count_if(actual.logits.begin(), actual.logits.end(), [&](float z) { return z >= max; }),
      std::min(size, kTopCandidates));
}

TEST(RowCandidates, AreTheLargestLogitsAndTheNamedIdsWithSumsOfTheRest) {
  // The rows of the largest vocabulary come in several chunks.
  for (const int64_t size : {1, 3, 512, 513, 2000, 70001}) {
    const at::Tensor logits = RandomTensor({65, size}, 6) * 3;
    logits[1].round_();  // ties
    logits[2].narrow(0, size / 2, size - size / 2).fill_(-kInfinity);
    std::vector<RowToSummarize> rows;
    for (int64_t i = 0; i < 65; ++i) {
      rows.push_back({64 - i, 0.5f * static_cast<float>(i % 4), {}});
      if (i % 3 == 0) rows.back().ids = {static_cast<int32_t>(size - 1), 0, 0};
    }
    for (const bool named : {true, false}) {
      if (!named) {
        for (RowToSummarize& row : rows) row.ids.clear();
      }
      const std::vector<RowCandidates> candidates = SummarizeRows(logits, rows);
      for (size_t i = 0; i < rows.size(); ++i) {
        SCOPED_TRACE(Concat("V ", size, ", row ", rows[i].row, named ? ", named" : ""));
        ExpectSummary(logits[rows[i].row], rows[i], candidates[i]);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(RowCandidates, HoldWhatIsNotFinite) {
  const at::Tensor logits = RandomTensor({3, 3000}, 7);
  logits[0][2999] = std::nanf("");
  logits[1][0] = kInfinity;
  logits[2].fill_(-kInfinity);
  const std::vector<RowCandidates> candidates =
      SummarizeRows(logits, {{0, 1, {}}, {1, 1, {}}, {2, 1, {}}});
  EXPECT_TRUE(std::isnan(candidates[0].logits.back()));
  EXPECT_EQ(candidates[1].logits.front(), kInfinity);
  EXPECT_EQ(candidates[2].rest_max, -kInfinity);
  EXPECT_EQ(candidates[2].rest_sum, 0);
  EXPECT_EQ(candidates[2].raw_rest_sum, 0);
}

}  // namespace
}  // namespace taopd::testing
