// The loops over a row against plain float64 loops, for every instruction set of this processor.
#include "kernels/cpu/math/row_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/head/complement.h"
#include "kernels/cpu/head/scoring_rows.h"
#include "tests/kernels/cpu/normal_floats.h"
#include "tests/kernels/cpu/supported_sets.h"

namespace taopd::cpu {
namespace {

using testing::NormalFloats;
using testing::SupportedSets;

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<int64_t> Sizes() {
  std::vector<int64_t> sizes;
  for (int64_t n = 0; n <= 70; ++n) sizes.push_back(n);
  for (int64_t n : {127, 128, 129, 1023, 1024, 1025, 1041, 5000}) sizes.push_back(n);
  return sizes;
}

// A block of logits, its columns' references, and the results of ColumnExp.
struct Columns {
  Columns(int64_t num, int64_t columns, uint64_t seed)
      : num(num),
        columns(columns),
        stride((columns + 15) / 16 * 16),
        block(NormalFloats(num * stride, seed, 5)),
        shift(columns, -kInf),
        offset(columns, -0.3f),
        sum(columns, 7),
        sum_x(columns, 7) {
    for (int64_t v = 0; v < num; ++v) {
      for (int64_t n = 0; n < columns; ++n) shift[n] = std::max(shift[n], block[v * stride + n]);
    }
  }

  // The arrays have one more number than is written.
  std::vector<float> Run(const RowMath& math) {
    std::vector<float> exps(num * columns + 1, 7);
    Run(math, exps.data(), false);
    return exps;
  }
  std::vector<uint16_t> RunBfloat16(const RowMath& math) {
    std::vector<uint16_t> exps(num * columns + 1, 7);
    Run(math, exps.data(), true);
    return exps;
  }
  void Run(const RowMath& math, void* exps, bool bfloat16) {
    math.column_exp({block.data(), stride, num, columns, shift.data(), offset.data(), 0.7f,
                     sum.data(), sum_x.data(), exps, bfloat16});
  }

  int64_t num, columns, stride;
  std::vector<float> block, shift, offset, sum, sum_x;
};

// exp is accurate to 2 ulp, 2.4e-7 relative, over the whole range where float32 has normal numbers.
TEST(RowMath, ExpIsAccurate) {
  constexpr double kTwoUlp = 2.4e-7;
  std::vector<float> x;
  for (float v = 0; v > -87.3f; v -= 0.0007f) x.push_back(v);
  const auto small = static_cast<std::ptrdiff_t>(x.size());
  for (float v : {-87.4f, -1000.0f, -3e38f, -kInf}) x.push_back(v);
  while (x.size() % 16 != 0) x.push_back(0);
  const auto n = static_cast<int64_t>(x.size());
  const std::vector<float> zeros(n, 0);
  std::vector<float> e(n), sum(n), sum_x(n);
  BestRowMath().column_exp({x.data(), n, 1, n, zeros.data(), zeros.data(), 1, sum.data(),
                            sum_x.data(), e.data(), false});
  double worst = 0;
  for (std::ptrdiff_t i = 0; i < small; ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    worst = std::max(worst, std::abs(e[i] - exact) / exact);
  }
  EXPECT_LT(worst, kTwoUlp);
  EXPECT_EQ(e[0], 1.0f);
  for (std::ptrdiff_t i = small; i < small + 4; ++i) {
    EXPECT_EQ(e[i], 0.0f) << x[i];
    EXPECT_EQ(sum_x[i], 0.0f) << x[i];
  }
}

// Every set gives the bits of the first, and the reference is at least the largest number: by less
// than one power of two, as far as float32 tells them apart.
TEST(RowMath, ColumnReferencesBoundTheLargestNumber) {
  std::vector<float> max = {0,      -0.0f, 1,     -1,        0.69f,    0.7f,   30,    -2000,  1e6f,
                            1.1e7f, 3e7f,  -5e8f, -INFINITY, INFINITY, 1e-30f, 88.7f, -1.5e7f};
  for (const float scale : {1.0f, 0.7f, 3.0f}) {
    std::vector<float> first;
    for (InstructionSet set : SupportedSets()) {
      const size_t columns = max.size();
      std::vector<float> shift(columns), offset(columns), exponent(columns);
      const ColumnReferences job = {.max = max.data(),
                                    .columns = static_cast<int64_t>(columns),
                                    .scale = scale,
                                    .shift = shift.data(),
                                    .offset = offset.data(),
                                    .exponent = exponent.data()};
      RowMathOf(set).column_references(job);
      for (size_t n = 0; n < columns; ++n) {
        const double log2_of_max = static_cast<double>(max[n]) * scale / std::log(2.0);
        if (std::isinf(max[n])) {
          EXPECT_EQ(exponent[n], max[n]) << NameOf(set);
          continue;
        }
        EXPECT_EQ(shift[n], max[n]);
        EXPECT_GE(exponent[n], log2_of_max) << NameOf(set) << " at " << max[n];
        EXPECT_EQ(exponent[n], std::ceil(exponent[n]));
        EXPECT_LE(offset[n], 0);
        if (std::abs(log2_of_max) > 1e7) continue;  // neighbors are farther apart
        EXPECT_LE(exponent[n] - log2_of_max, 1) << NameOf(set) << " at " << max[n];
        EXPECT_NEAR(offset[n], (log2_of_max - exponent[n]) * std::log(2.0), 1e-6) << max[n];
      }
      std::vector<float> all = shift;
      all.insert(all.end(), offset.begin(), offset.end());
      all.insert(all.end(), exponent.begin(), exponent.end());
      if (first.empty()) first = all;
      EXPECT_EQ(std::memcmp(all.data(), first.data(), all.size() * sizeof(float)), 0)
          << NameOf(set);
    }
  }
}

// Every set gives the bits of the first.
TEST(RowMath, ExpOfDoublesIsWithinTwoUlp) {
  std::vector<double> x = {0,   -0.0, -1e-300, 1e-9,   -0.3465735902, 0.3465735903,
                           709, -708, -709,    -1e300, NAN,           -INFINITY};
  std::mt19937 random(7);
  std::uniform_real_distribution<double> any(-708, 0);
  for (int i = 0; i < 2000; ++i) x.push_back(i % 2 == 0 ? any(random) : any(random) / 708);
  std::vector<double> first;
  for (InstructionSet set : SupportedSets()) {
    std::vector<double> y(x.size());
    RowMathOf(set).exp_of_doubles(x.data(), static_cast<int32_t>(x.size()), y.data());
    for (size_t i = 0; i < x.size(); ++i) {
      if (!(x[i] >= -708)) {
        EXPECT_TRUE(std::isnan(x[i]) ? std::isnan(y[i]) : y[i] == 0) << x[i];
        continue;
      }
      const double expected = std::exp(x[i]);
      EXPECT_LE(std::abs(y[i] - expected), 2 * (expected - std::nextafter(expected, 0))) << x[i];
    }
    if (first.empty()) first = y;
    EXPECT_EQ(std::memcmp(y.data(), first.data(), y.size() * sizeof(double)), 0) << NameOf(set);
    // The last, partial vector, in place.
    double part[] = {-1, -2, -3, 4};
    RowMathOf(set).exp_of_doubles(part, 3, part);
    EXPECT_EQ(part[3], 4);
    EXPECT_NEAR(part[2], std::exp(-3.0), 1e-16);
  }
}

// Few different logits, so that many are equal; some are NaN or -inf.
TEST(RowMath, SupportTopKMatchesPlainLoops) {
  constexpr int64_t kV = 300, kK = 5;
  std::mt19937 random(9);
  const auto any = [&] {
    const auto i = random() % 12;
    return i == 0 ? NAN : i == 1 ? -INFINITY : static_cast<float>(i % 7);
  };
  std::vector<float> logits(kV * kRankedRows), support_logits(kK * kRankedRows);
  std::vector<int32_t> ids(kK * kRankedRows);
  for (float& logit : logits) logit = any();
  std::vector<int32_t> sizes(kRankedRows);
  for (int64_t n = 0; n < kRankedRows; ++n) {
    sizes[n] = static_cast<int32_t>(n % (kK + 1));
    for (int64_t j = 0; j < kK; ++j) {
      if (j >= sizes[n]) {
        ids[j * kRankedRows + n] = std::numeric_limits<int32_t>::max();
        support_logits[j * kRankedRows + n] = NAN;
        continue;
      }
      const auto id = static_cast<int32_t>((n * 31 + j * 77) % kV);
      ids[j * kRankedRows + n] = id;
      support_logits[j * kRankedRows + n] = any();
      logits[id * kRankedRows + n] = -INFINITY;
    }
  }
  const auto key = [](float logit) { return std::isnan(logit) ? -INFINITY : logit; };
  for (InstructionSet set : SupportedSets()) {
    std::vector<float> ordered_logits(kK * kRankedRows);
    std::vector<int32_t> ordered_ids(kK * kRankedRows), in_top_k(kK * kRankedRows);
    const SupportTopK job = {.logits = logits.data(),
                             .stride = kRankedRows,
                             .num = kV,
                             .support_logits = support_logits.data(),
                             .ids = ids.data(),
                             .sizes = sizes.data(),
                             .k = kK,
                             .ordered_logits = ordered_logits.data(),
                             .ordered_ids = ordered_ids.data(),
                             .in_top_k = in_top_k.data()};
    RowMathOf(set).support_top_k(job);
    for (int64_t n = 0; n < kRankedRows; ++n) {
      for (int64_t j = 0; j < sizes[n]; ++j) {
        const float own = key(support_logits[j * kRankedRows + n]);
        const int32_t id = ids[j * kRankedRows + n];
        int32_t rank = 0;
        for (int32_t v = 0; v < kV; ++v) {
          const float z = key(logits[v * kRankedRows + n]);
          if (z != -INFINITY) rank += z > own || (z == own && v < id);
        }
        for (int64_t i = 0; i < sizes[n]; ++i) {
          const float other = key(support_logits[i * kRankedRows + n]);
          rank += other > own || (other == own && ids[i * kRankedRows + n] < id);
        }
        EXPECT_EQ(in_top_k[j * kRankedRows + n] != 0, rank < sizes[n])
            << NameOf(set) << ", row " << n;
      }
    }
  }
}

TEST(RowMath, ColumnsMatchPlainLoops) {
  for (InstructionSet set : SupportedSets()) {
    const RowMath& math = RowMathOf(set);
    for (int64_t num : {1, 15, 16, 17, 144}) {
      for (int64_t columns : {1, 2, 15, 16, 17, 31, 33, 64}) {
        const std::string what =
            std::string(NameOf(set)) + ", " + std::to_string(num) + " x " + std::to_string(columns);
        Columns c(num, columns, 3 * num + columns);
        std::vector<float> max(columns + 1, 7);
        math.column_max(c.block.data(), c.stride, num, columns, max.data());
        EXPECT_EQ(max[columns], 7) << what;
        const std::vector<float> exps = c.Run(math);
        EXPECT_EQ(exps.back(), 7) << what;
        for (int64_t n = 0; n < columns; ++n) {
          EXPECT_EQ(max[n], c.shift[n]) << what;
          double sum = 0, sum_x = 0;
          for (int64_t v = 0; v < num; ++v) {
            const double x = (static_cast<double>(c.block[v * c.stride + n]) - c.shift[n]) * 0.7f +
                             static_cast<double>(c.offset[n]);
            EXPECT_NEAR(exps[v * columns + n], std::exp(x), 4e-6 * std::exp(x)) << what;
            sum += std::exp(x);
            sum_x += std::exp(x) * x;
          }
          EXPECT_NEAR(c.sum[n], sum, 2e-6 * sum) << what;
          EXPECT_NEAR(c.sum_x[n], sum_x, 2e-6 * (sum + std::abs(sum_x))) << what;
        }
        // bfloat16 is half a unit in the eighth bit; the sums are of unrounded numbers.
        const std::vector<float> sums = c.sum;
        const std::vector<uint16_t> narrow = c.RunBfloat16(math);
        EXPECT_EQ(narrow.back(), 7) << what;
        EXPECT_EQ(c.sum, sums) << what;
        for (int64_t i = 0; i < num * columns; ++i) {
          EXPECT_NEAR(testing::Widened(narrow[i]), exps[i], exps[i] / 256) << what;
        }
        c.Run(math, nullptr, false);
        EXPECT_EQ(c.sum, sums) << what;
      }
    }
  }
}

TEST(RowMath, MatchesPlainLoopsForAllSizesAndAlignments) {
  for (InstructionSet set : SupportedSets()) {
    const RowMath& math = RowMathOf(set);
    for (int64_t n : Sizes()) {
      for (int64_t offset : {0, 1, 3}) {
        std::vector<float> buffer = NormalFloats(n + offset, 7 * n + offset, 5);
        float* row = buffer.data() + offset;
        float max = -kInf;
        for (int64_t i = 0; i < n; ++i) max = std::max(max, row[i]);
        EXPECT_EQ(math.max(row, n), max) << NameOf(set) << " n " << n;
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
        EXPECT_NEAR(sums.sum_exp, sum, 2e-6 * sum) << NameOf(set) << " n " << n;
        EXPECT_NEAR(sums.sum_exp_x, sum_x, 2e-6 * (sum + std::abs(sum_x)))
            << NameOf(set) << " n " << n;
        EXPECT_EQ(math.count_at_least(row, n, row[n / 2]), count) << NameOf(set) << " n " << n;
        std::vector<float> tiles((n + kTileSize - 1) / kTileSize);
        math.tile_max(row, n, tiles.data());
        for (std::size_t t = 0; t < tiles.size(); ++t) {
          const int64_t begin = static_cast<int64_t>(t) * kTileSize;
          EXPECT_EQ(tiles[t], *std::max_element(row + begin, row + std::min(n, begin + kTileSize)));
        }
      }
    }
  }
}

// The bits are the same on every instruction set: a machine type does not change a result.
TEST(RowMath, InstructionSetsAgreeBitForBit) {
  if (SupportedSets().size() == 1) GTEST_SKIP() << "this processor has one instruction set";
  for (int64_t n : {1, 17, 1025, 151936}) {
    const std::vector<float> row = NormalFloats(n, n, 8);
    const RowMath& base = RowMathOf(InstructionSet::kBase);
    const float max = base.max(row.data(), n);
    const ExpSums sums = base.sum_exp(row.data(), n, max, 0.9f);
    Columns expected(144, n % 97 + 1, n);
    const std::vector<float> exps = expected.Run(base);
    const std::vector<uint16_t> narrow = expected.RunBfloat16(base);
    for (InstructionSet set : SupportedSets()) {
      const char* name = NameOf(set);
      const ExpSums other = RowMathOf(set).sum_exp(row.data(), n, max, 0.9f);
      EXPECT_EQ(sums.sum_exp, other.sum_exp) << name;
      EXPECT_EQ(sums.sum_exp_x, other.sum_exp_x) << name;
      Columns columns(144, n % 97 + 1, n);
      EXPECT_EQ(columns.Run(RowMathOf(set)), exps) << name;
      EXPECT_EQ(columns.RunBfloat16(RowMathOf(set)), narrow) << name;
      EXPECT_EQ(columns.sum, expected.sum) << name;
      EXPECT_EQ(columns.sum_x, expected.sum_x) << name;
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
    EXPECT_TRUE(std::isnan(LogSumOf(SumBelow(math, math.max(row.data(), n), row.data(), n, 1), 1)));
    row[n - 1] = kInf;
    EXPECT_TRUE(std::isnan(LogSumOf(SumBelow(math, math.max(row.data(), n), row.data(), n, 1), 1)));
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
