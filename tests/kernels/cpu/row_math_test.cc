// The loops over a row against plain float64 loops, for every instruction set of this processor.
#include "kernels/cpu/row_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/complement.h"
#include "kernels/cpu/scoring_rows.h"

namespace taopd::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> RandomRow(int64_t n, float scale, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> row(n);
  for (float& z : row) z = normal(random);
  return row;
}

std::vector<int64_t> Sizes() {
  std::vector<int64_t> sizes;
  for (int64_t n = 0; n <= 70; ++n) sizes.push_back(n);
  for (int64_t n : {127, 128, 129, 1023, 1024, 1025, 1041, 5000}) sizes.push_back(n);
  return sizes;
}

// exp within 2 ulp: 2.4e-7 relative, over the whole range where float32 has normal numbers.
TEST(RowMath, ExpIsAccurate) {
  constexpr double kTwoUlp = 2.4e-7;
  std::vector<float> x;
  for (float v = 0; v > -87.3f; v -= 0.0007f) x.push_back(v);
  std::vector<float> e = x;
  BestRowMath().exp_in_place(e.data(), static_cast<int64_t>(e.size()), 0, 1);
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    worst = std::max(worst, std::abs(e[i] - exact) / exact);
  }
  EXPECT_LT(worst, kTwoUlp);
  EXPECT_EQ(e[0], 1.0f);
  std::vector<float> small = {-87.4f, -1000, -3e38f, -kInf};
  BestRowMath().exp_in_place(small.data(), 4, 0, 1);
  for (float v : small) EXPECT_EQ(v, 0.0f);
}

TEST(RowMath, MatchesPlainLoopsForAllSizesAndAlignments) {
  for (int set = 0; set < NumRowMaths(); ++set) {
    const RowMath& math = RowMathAt(set);
    for (int64_t n : Sizes()) {
      for (int64_t offset : {0, 1, 3}) {
        std::vector<float> buffer = RandomRow(n + offset, 5, 7 * n + offset);
        float* row = buffer.data() + offset;
        float max = -kInf;
        for (int64_t i = 0; i < n; ++i) max = std::max(max, row[i]);
        EXPECT_EQ(math.max(row, n), max) << math.name << " n " << n;
        if (n == 0) continue;
        double sum = 0;
        double sum_x = 0;
        int64_t count = 0;
        for (int64_t i = 0; i < n; ++i) {
          const double x = (static_cast<double>(row[i]) - max) * 0.7f;
          sum += std::exp(x);
          sum_x += std::exp(x) * x;
          count += row[i] >= row[n / 2];
        }
        const ExpSums sums = math.sum_exp(row, n, max, 0.7f);
        EXPECT_NEAR(sums.sum_exp, sum, 2e-6 * sum) << math.name << " n " << n;
        EXPECT_NEAR(sums.sum_exp_x, sum_x, 2e-6 * (sum + std::abs(sum_x)))
            << math.name << " n " << n;
        EXPECT_EQ(math.count_at_least(row, n, row[n / 2]), count) << math.name << " n " << n;
        std::vector<float> tiles((n + kTileSize - 1) / kTileSize);
        math.tile_max(row, n, tiles.data());
        for (std::size_t t = 0; t < tiles.size(); ++t) {
          const int64_t begin = static_cast<int64_t>(t) * kTileSize;
          EXPECT_EQ(tiles[t], *std::max_element(row + begin, row + std::min(n, begin + kTileSize)));
        }
        std::vector<float> e(row, row + n);
        const ExpSums written = math.exp_in_place(e.data(), n, max, 0.7f);
        EXPECT_EQ(written.sum_exp, sums.sum_exp);
        EXPECT_EQ(written.sum_exp_x, sums.sum_exp_x);
        math.scale(e.data(), n, 3);
        for (int64_t i = 0; i < n; ++i) {
          const double exact = 3 * std::exp((static_cast<double>(row[i]) - max) * 0.7f);
          EXPECT_NEAR(e[i], exact, 4e-6 * exact) << math.name << " n " << n << " i " << i;
        }
      }
    }
  }
}

// The same bits on every instruction set: a machine type does not change a result.
TEST(RowMath, InstructionSetsAgreeBitForBit) {
  if (NumRowMaths() == 1) GTEST_SKIP() << "this processor has one instruction set";
  for (int64_t n : {1, 17, 1025, 151936}) {
    std::vector<float> row = RandomRow(n, 8, n);
    const float max = RowMathAt(0).max(row.data(), n);
    std::vector<float> expected = row;
    const ExpSums sums = RowMathAt(0).exp_in_place(expected.data(), n, max, 0.9f);
    for (int set = 1; set < NumRowMaths(); ++set) {
      std::vector<float> e = row;
      const ExpSums other = RowMathAt(set).exp_in_place(e.data(), n, max, 0.9f);
      EXPECT_EQ(sums.sum_exp, other.sum_exp) << RowMathAt(set).name;
      EXPECT_EQ(sums.sum_exp_x, other.sum_exp_x) << RowMathAt(set).name;
      EXPECT_EQ(std::memcmp(e.data(), expected.data(), n * sizeof(float)), 0)
          << RowMathAt(set).name;
    }
  }
}

TEST(RowMath, InfinityAndNanShowInTheSums) {
  const RowMath& math = BestRowMath();
  for (int64_t n : {3, 16, 40}) {
    std::vector<float> row(n, -kInf);
    EXPECT_EQ(math.sum_exp(row.data(), n, 0, 1).sum_exp, 0);
    EXPECT_EQ(math.sum_exp(row.data(), n, 0, 1).sum_exp_x, 0);
    row[n - 1] = std::nanf("");
    EXPECT_TRUE(std::isnan(math.sum_exp(row.data(), n, 0, 1).sum_exp));
    EXPECT_TRUE(
        std::isnan(LogSumOf(SumBelow(math, math.max(row.data(), n), row.data(), n, 1, false), 1)));
    row[n - 1] = kInf;
    EXPECT_TRUE(
        std::isnan(LogSumOf(SumBelow(math, math.max(row.data(), n), row.data(), n, 1, false), 1)));
  }
}

TEST(TakeOut, SavesLogitsAndFindsDuplicates) {
  std::vector<float> row = {1, 2, 3, 4};
  std::vector<float> taken(3);
  const int32_t ids[] = {2, 0, 3};
  EXPECT_TRUE(TakeOut(ids, 3, row.data(), taken.data()));
  EXPECT_EQ(taken, (std::vector<float>{3, 1, 4}));
  EXPECT_EQ(row, (std::vector<float>{-kInf, 2, -kInf, -kInf}));
  const int32_t twice[] = {1, 0, 1};
  EXPECT_FALSE(TakeOut(twice, 3, row.data(), taken.data()));
}

// Against a full stable sort; rows with few distinct numbers have ties everywhere.
TEST(TopK, MatchesStableSortWithTies) {
  ScoringRowScratch scratch;
  for (int64_t n : {1, 5, 127, 129, 1000, 4096}) {
    for (int distinct : {1, 3, 50, 1000000}) {
      std::mt19937_64 random(n + distinct);
      std::vector<float> row(n);
      for (float& z : row) z = static_cast<float>(static_cast<int>(random() % distinct)) - 1;
      std::vector<int32_t> order(n);
      for (int64_t i = 0; i < n; ++i) order[i] = static_cast<int32_t>(i);
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return row[a] > row[b]; });
      for (int32_t k : {0, 1, 2, 7, 31, 32, 33, 1024}) {
        if (k > n) continue;
        std::vector<int32_t> ids(k);
        TopK(row.data(), n, k, &scratch, ids.data());
        EXPECT_TRUE(std::equal(ids.begin(), ids.end(), order.begin())) << "n " << n << " k " << k;
      }
    }
  }
}

TEST(TopK, NanAndInfinityGiveDistinctIds) {
  ScoringRowScratch scratch;
  for (float filler : {std::nanf(""), -kInf, kInf}) {
    std::vector<float> row(1000, filler);
    row[500] = 1;
    for (int32_t k : {1, 5, 1000}) {
      std::vector<int32_t> ids(k);
      TopK(row.data(), 1000, k, &scratch, ids.data());
      EXPECT_EQ(ids[0] == 500, filler != kInf);
      std::sort(ids.begin(), ids.end());
      EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
    }
  }
}

}  // namespace
}  // namespace taopd::cpu
