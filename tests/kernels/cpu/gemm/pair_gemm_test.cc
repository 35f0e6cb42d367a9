// Products with packed bfloat16 pairs against plain float64 loops, for every way that this
// processor has of computing them.
#include "kernels/cpu/gemm/pair_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace taopd::cpu {
namespace {

// Float32 rounding of each of K sums, relative to the sum of the products' sizes.
double PairTolerance(int64_t num_k) { return 6e-8 * static_cast<double>(num_k + 2); }

float Widen(Bfloat16Bits value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result = 0;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

// Standard normal numbers, cut off to bfloat16.
std::vector<Bfloat16Bits> RandomPairs(int64_t num, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<Bfloat16Bits> values(num);
  for (Bfloat16Bits& value : values) {
    const float x = normal(random);
    uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof(bits));
    value = static_cast<Bfloat16Bits>(bits >> 16);
  }
  return values;
}

std::vector<Bfloat16Bits> Packed(const std::vector<Bfloat16Bits>& w, int64_t num_n, int64_t num_k) {
  std::vector<Bfloat16Bits> panels(NumPairPanels(num_n) * PairPanelElements(num_k), 0x7fc0);
  for (int64_t n = 0; n < num_n; n += kPairPanelWidth) {
    const int64_t columns = std::min(kPairPanelWidth, num_n - n);
    Bfloat16Bits* panel = panels.data() + n / kPairPanelWidth * PairPanelElements(num_k);
    PackPairColumns(w.data() + n * num_k, num_k, columns, num_k, 0, panel);
    ZeroPairColumns(num_k, columns, panel);
  }
  return panels;
}

// C [M, N] by one way of computing; x has rows of x_stride.
void MultiplyBy(const PairGemm& gemm, const std::vector<Bfloat16Bits>& x, int64_t x_stride,
                const std::vector<Bfloat16Bits>& panels, int64_t num_m, int64_t num_n,
                int64_t num_k, float* c, int64_t c_stride) {
  if (gemm.multiply != nullptr) {
    gemm.multiply(x.data(), x_stride, panels.data(), num_m, num_n, num_k, c, c_stride);
    return;
  }
  std::vector<float> wide(x.size());
  std::transform(x.begin(), x.end(), wide.begin(), Widen);
  gemm.multiply_widened(wide.data(), x_stride, panels.data(), num_m, num_n, num_k, c, c_stride);
}

TEST(PairGemm, ExactlyOneProductIsGiven) {
  ASSERT_FALSE(SupportedPairGemms().empty());
  for (const PairGemm* gemm : SupportedPairGemms()) {
    EXPECT_NE(gemm->multiply == nullptr, gemm->multiply_widened == nullptr) << gemm->name;
  }
  EXPECT_EQ(&BestPairGemm(), SupportedPairGemms().back());
}

TEST(PairGemm, PacksPairsOfAdjacentInputs) {
  constexpr int64_t kN = 67, kK = 37;
  const std::vector<Bfloat16Bits> w = RandomPairs(kN * kK, 1);
  const std::vector<Bfloat16Bits> panels = Packed(w, kN, kK);
  ASSERT_EQ(panels.size(), 2u * 19 * 64 * 2);
  for (int64_t i = 0; i < static_cast<int64_t>(panels.size()); ++i) {
    const int64_t k = i / 128 % 19 * 2 + i % 2;
    const int64_t n = i / (19 * 128) * 64 + i / 2 % 64;
    EXPECT_EQ(panels[i], n < kN && k < kK ? w[n * kK + k] : 0) << n << ", " << k;
  }
}

TEST(PairGemm, MatchesPlainLoopsForAllShapes) {
  struct Shape {
    int64_t m, n, k;
  };
  std::vector<Shape> shapes = {
      {97, 200, 300}, {1, 63, 1030}, {5, 65, 1}, {6, 1, 2}, {13, 128, 513}};
  for (int64_t m = 1; m <= 14; ++m) shapes.push_back({m, 11 * m + 1, 3 * m});
  for (const PairGemm* gemm : SupportedPairGemms()) {
    for (const Shape& shape : shapes) {
      const int64_t x_stride = shape.k + 3, c_stride = shape.n + 2;
      std::vector<Bfloat16Bits> x = RandomPairs(shape.m * x_stride, 2);
      const std::vector<Bfloat16Bits> w = RandomPairs(shape.n * shape.k, 3);
      // What lies between the rows is not read: a NaN there would show, even times zero.
      for (int64_t m = 0; m < shape.m; ++m) x[m * x_stride + shape.k] = 0x7fc0;
      std::vector<float> c(shape.m * c_stride, 77);
      MultiplyBy(*gemm, x, x_stride, Packed(w, shape.n, shape.k), shape.m, shape.n, shape.k,
                 c.data(), c_stride);
      for (int64_t m = 0; m < shape.m; ++m) {
        for (int64_t n = 0; n < c_stride; ++n) {
          const float value = c[m * c_stride + n];
          if (n >= shape.n) {
            ASSERT_EQ(value, 77) << "written beyond a row";
            continue;
          }
          double sum = 0, size = 0;
          for (int64_t k = 0; k < shape.k; ++k) {
            const double product = static_cast<double>(Widen(x[m * x_stride + k])) *
                                   static_cast<double>(Widen(w[n * shape.k + k]));
            sum += product;
            size += std::abs(product);
          }
          ASSERT_NEAR(value, sum, PairTolerance(shape.k) * size)
              << gemm->name << ": " << shape.m << " x " << shape.n << " x " << shape.k << " at "
              << m << ", " << n;
        }
      }
    }
  }
}

// A row and a column are the same bits in whatever company they are computed.
TEST(PairGemm, ElementsDoNotDependOnTheOthers) {
  constexpr int64_t kM = 25, kN = 150, kK = 517;
  const std::vector<Bfloat16Bits> x = RandomPairs(kM * kK, 5);
  const std::vector<Bfloat16Bits> w = RandomPairs(kN * kK, 6);
  const std::vector<Bfloat16Bits> panels = Packed(w, kN, kK);
  for (const PairGemm* gemm : SupportedPairGemms()) {
    std::vector<float> whole(kM * kN);
    MultiplyBy(*gemm, x, kK, panels, kM, kN, kK, whole.data(), kN);
    for (int64_t rows = 1; rows <= 13; ++rows) {
      const int64_t first = rows % 7;
      const std::vector<Bfloat16Bits> some(x.begin() + first * kK, x.begin() + (first + rows) * kK);
      std::vector<float> c(rows * kN);
      MultiplyBy(*gemm, some, kK, panels, rows, kN, kK, c.data(), kN);
      ASSERT_EQ(std::memcmp(c.data(), whole.data() + first * kN, c.size() * sizeof(float)), 0)
          << gemm->name << ", " << rows << " rows";
    }
    for (int64_t n = 0; n < kN; n += 7) {
      const std::vector<Bfloat16Bits> output(w.begin() + n * kK, w.begin() + (n + 1) * kK);
      float one = 0;
      MultiplyBy(*gemm, x, kK, Packed(output, 1, kK), 1, 1, kK, &one, 1);
      ASSERT_EQ(one, whole[n]) << gemm->name << " at " << n;
    }
  }
}

// The order that the header promises: k ascending for those that widen; odd k before even k in a
// pair for VDPBF16PS. Numbers whose sums are rounded at each step tell the orders apart.
TEST(PairGemm, SumsInTheOrderOfTheHeader) {
  constexpr int64_t kK = 300;
  const std::vector<Bfloat16Bits> x = RandomPairs(kK, 7);
  const std::vector<Bfloat16Bits> w = RandomPairs(kK, 8);
  for (const PairGemm* gemm : SupportedPairGemms()) {
    const bool fuses = std::strcmp(gemm->name, "base") != 0;
    float expected = 0;
    for (int64_t i = 0; i < kK; ++i) {
      const int64_t k = gemm->multiply != nullptr ? i ^ 1 : i;
      const float product = Widen(x[k]) * Widen(w[k]);  // exact: 16 bits
      expected = fuses ? std::fma(Widen(x[k]), Widen(w[k]), expected) : expected + product;
    }
    float sum = 0;
    MultiplyBy(*gemm, x, kK, Packed(w, 1, kK), 1, 1, kK, &sum, 1);
    EXPECT_EQ(sum, expected) << gemm->name;
  }
}

TEST(PairGemm, RoundsToNearestEven) {
  const float inf = std::numeric_limits<float>::infinity();
  struct Case {
    float from, bias;
    Bfloat16Bits rounded;
  };
  // 1 + 2^-8 is half way between 1 and the next bfloat16, 1 + 3 * 2^-8 between the next two.
  const std::vector<Case> cases = {{1.00390625f, 0, 0x3f80}, {1.01171875f, 0, 0x3f82},
                                   {1.0f, 0.00391f, 0x3f81}, {-2.5f, 0.5f, 0xc000},
                                   {3.4e38f, 0, 0x7f80},     {inf, 1, 0x7f80},
                                   {-inf, 1, 0xff80},        {inf, -inf, 0x7fc0},
                                   {1e-40f, 0, 0x0001},      {-0.0f, -0.0f, 0x8000}};
  for (const PairGemm* gemm : SupportedPairGemms()) {
    std::vector<float> from, bias;
    for (int i = 0; i < 40; ++i) {
      from.push_back(cases[i % cases.size()].from);
      bias.push_back(cases[i % cases.size()].bias);
    }
    std::vector<Bfloat16Bits> to(41, 77);
    gemm->add_and_round(from.data(), bias.data(), 40, to.data());
    for (int i = 0; i < 40; ++i) {
      EXPECT_EQ(to[i], cases[i % cases.size()].rounded) << gemm->name << ", case " << i;
    }
    EXPECT_EQ(to[40], 77) << "written beyond the end";
    gemm->add_and_round(from.data(), nullptr, 1, to.data() + 40);
    EXPECT_EQ(to[40], 0x3f80) << gemm->name;
  }
}

}  // namespace
}  // namespace taopd::cpu
