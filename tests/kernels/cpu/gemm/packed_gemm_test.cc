// Products with packed weights against plain float64 loops, for every way in which this processor
// can compute them.
#include "kernels/cpu/gemm/packed_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/cpu/gemm/coded_matrix.h"
#include "tests/kernels/cpu/normal_floats.h"
#include "tests/kernels/cpu/supported_sets.h"

namespace taopd::cpu {
namespace {

using testing::SumTolerance;
using testing::UpperHalf;

// One way of multiplying: an instruction set, and the type of the weights. Numbers are float32
// here; for pairs they must be bfloat16 numbers.
struct Way {
  const PackedGemm* gemm;
  bool pairs;
  bool coded = false;  // pairs in coded panels

  std::string name() const {
    return std::string(testing::NameOf(gemm)) + (coded   ? ", coded pairs"
                                                 : pairs ? ", pairs"
                                                         : ", floats");
  }
  bool by_instruction() const { return pairs && gemm->multiply_pairs != nullptr; }

  // Returns standard normal numbers.
  std::vector<float> Random(int64_t num, uint64_t seed) const {
    std::vector<float> values = testing::NormalFloats(num, seed);
    if (!pairs) return values;
    for (float& value : values) value = testing::Widened(UpperHalf(value));
    return values;
  }

  // Computes C [M, N] from W [N, K] and x, whose rows are x_stride apart.
  void Multiply(const std::vector<float>& x, int64_t x_stride, const std::vector<float>& w,
                int64_t num_m, int64_t num_n, int64_t num_k, float* c, int64_t c_stride,
                bool accumulate = false) const {
    const int64_t num_panels = NumPackedPanels(num_n);
    if (!pairs) {
      std::vector<float> panels(num_panels * FloatPanelElements(num_k), NAN);
      for (int64_t n = 0; n < num_n; n += kPanelOutputs) {
        const int64_t columns = std::min(kPanelOutputs, num_n - n);
        float* panel = panels.data() + n / kPanelOutputs * FloatPanelElements(num_k);
        PackFloatColumns(w.data() + n * num_k, num_k, columns, num_k, 0, panel);
        ZeroFloatColumns(num_k, columns, panel);
      }
      gemm->multiply_floats(x.data(), x_stride, panels.data(), num_m, num_n, num_k, c, c_stride,
                            accumulate);
      return;
    }
    std::vector<Bfloat16Bits> narrow(w.size());
    std::transform(w.begin(), w.end(), narrow.begin(), UpperHalf);
    std::vector<Bfloat16Bits> panels(num_panels * PairPanelElements(num_k), 0x7fc0);
    for (int64_t n = 0; n < num_n; n += kPanelOutputs) {
      const int64_t columns = std::min(kPanelOutputs, num_n - n);
      Bfloat16Bits* panel = panels.data() + n / kPanelOutputs * PairPanelElements(num_k);
      PackPairColumns(narrow.data() + n * num_k, num_k, columns, num_k, 0, panel);
      ZeroPairColumns(num_k, columns, panel);
    }
    const CodedMatrix coded_panels(panels, num_panels);
    const PairPanels weights =
        coded ? PairPanels(coded_panels.panels.data()) : PairPanels(panels.data());
    if (!by_instruction()) {
      gemm->multiply_widened_pairs(x.data(), x_stride, weights, num_m, num_n, num_k, c, c_stride,
                                   accumulate);
      return;
    }
    std::vector<Bfloat16Bits> narrow_x(x.size());
    std::transform(x.begin(), x.end(), narrow_x.begin(), UpperHalf);
    gemm->multiply_pairs(narrow_x.data(), x_stride, weights, num_m, num_n, num_k, c, c_stride,
                         accumulate);
  }
};

std::vector<Way> AllWays() {
  std::vector<Way> ways;
  for (const PackedGemm* gemm : testing::SupportedPackedGemms()) {
    ways.push_back({gemm, true});
    ways.push_back({gemm, true, true});
    ways.push_back({gemm, false});
  }
  return ways;
}

TEST(PackedGemm, ExactlyOneProductOfPairsIsGiven) {
  ASSERT_FALSE(testing::SupportedPackedGemms().empty());
  for (const PackedGemm* gemm : testing::SupportedPackedGemms()) {
    EXPECT_NE(gemm->multiply_pairs == nullptr, gemm->multiply_widened_pairs == nullptr)
        << testing::NameOf(gemm);
  }
  EXPECT_EQ(&BestPackedGemm(), testing::SupportedPackedGemms().back());
}

// Columns 5 to 41 of a panel whose first five columns belong to another matrix.
TEST(PackedGemm, PacksAsTheHeaderSays) {
  constexpr int64_t kN = 37, kK = 35, kColumn = 5;
  std::vector<Bfloat16Bits> w(kN * kK);
  std::vector<float> float_w(kN * kK);
  for (int64_t i = 0; i < kN * kK; ++i) {
    w[i] = static_cast<Bfloat16Bits>(i + 1);
    float_w[i] = static_cast<float>(i + 1);
  }
  std::vector<Bfloat16Bits> pairs(PairPanelElements(kK), 0xffff);
  PackPairColumns(w.data(), kK, kN, kK, kColumn, pairs.data());
  ZeroPairColumns(kK, kColumn + kN, pairs.data());
  std::vector<float> floats(FloatPanelElements(kK), -1);
  PackFloatColumns(float_w.data(), kK, kN, kK, kColumn, floats.data());
  ZeroFloatColumns(kK, kColumn + kN, floats.data());
  ASSERT_EQ(pairs.size(), 18u * 64 * 2);
  ASSERT_EQ(floats.size(), 35u * 64);
  for (int64_t k = 0; k < kK + 1; ++k) {
    for (int64_t column = 0; column < 64; ++column) {
      const int64_t n = column - kColumn;
      const bool present = n < kN && k < kK;
      const int64_t expected = !present ? 0 : n * kK + k + 1;
      EXPECT_EQ(pairs[(k / 2 * 64 + column) * 2 + k % 2], n < 0 ? 0xffff : expected);
      if (k < kK) {
        EXPECT_EQ(floats[k * 64 + column], n < 0 ? -1 : static_cast<float>(expected));
      }
    }
  }
}

TEST(PackedGemm, MatchesPlainLoopsForAllShapes) {
  struct Shape {
    int64_t m, n, k;
  };
  // The two shapes with K > 2000 are longer than a block of k; in the last, an odd k follows a
  // whole block.
  std::vector<Shape> shapes = {{97, 200, 300}, {1, 128, 1030}, {5, 65, 1},    {6, 1, 2},
                               {13, 66, 2051}, {7, 3, 2049},   {50, 96, 1056}};
  for (int64_t m = 1; m <= 14; ++m) shapes.push_back({m, 11 * m + 1, 3 * m});
  for (const Way& way : AllWays()) {
    for (const Shape& shape : shapes) {
      const int64_t x_stride = shape.k + 3, c_stride = shape.n + 2;
      std::vector<float> x = way.Random(shape.m * x_stride, 2);
      const std::vector<float> w = way.Random(shape.n * shape.k, 3);
      // The gaps between the rows are not read: a NaN there would show, even times zero.
      for (int64_t m = 0; m < shape.m; ++m) x[m * x_stride + shape.k] = NAN;
      std::vector<float> c((shape.m + 1) * c_stride, 77);
      way.Multiply(x, x_stride, w, shape.m, shape.n, shape.k, c.data(), c_stride);
      for (int64_t m = 0; m <= shape.m; ++m) {
        for (int64_t n = 0; n < c_stride; ++n) {
          const float value = c[m * c_stride + n];
          if (n >= shape.n || m == shape.m) {
            ASSERT_EQ(value, 77) << "written beyond a row or after the last";
            continue;
          }
          double sum = 0, size = 0;
          for (int64_t k = 0; k < shape.k; ++k) {
            const double product =
                static_cast<double>(x[m * x_stride + k]) * static_cast<double>(w[n * shape.k + k]);
            sum += product;
            size += std::abs(product);
          }
          ASSERT_NEAR(value, sum, SumTolerance(shape.k) * size)
              << way.name() << ": " << shape.m << " x " << shape.n << " x " << shape.k << " at "
              << m << ", " << n;
        }
      }
    }
  }
}

// A row and a column have the same bits whatever they are computed with; K is longer than a block
// of k.
TEST(PackedGemm, ElementsDoNotDependOnTheOthers) {
  constexpr int64_t kM = 75, kN = 70, kK = 2307;
  for (const Way& way : AllWays()) {
    const std::vector<float> x = way.Random(kM * kK, 5);
    const std::vector<float> w = way.Random(kN * kK, 6);
    std::vector<float> whole(kM * kN);
    way.Multiply(x, kK, w, kM, kN, kK, whole.data(), kN);
    for (int64_t rows = 1; rows <= 68; rows += rows < 13 ? 1 : 5) {
      const int64_t first = rows % 7;
      const std::vector<float> some(x.begin() + first * kK, x.begin() + (first + rows) * kK);
      std::vector<float> c(rows * kN);
      way.Multiply(some, kK, w, rows, kN, kK, c.data(), kN);
      ASSERT_EQ(std::memcmp(c.data(), whole.data() + first * kN, c.size() * sizeof(float)), 0)
          << way.name() << ", " << rows << " rows";
    }
    for (int64_t n = 0; n < kN; n += 7) {
      const std::vector<float> output(w.begin() + n * kK, w.begin() + (n + 1) * kK);
      float one = 0;
      way.Multiply(x, kK, output, 1, 1, kK, &one, 1);
      ASSERT_EQ(one, whole[n]) << way.name() << " at " << n;
    }
  }
}

// Returns x w, summed in the order that the header promises for this way.
float SumInOrder(const Way& way, const float* x, const float* w, int64_t num_k) {
  float sum = 0;
  if (way.by_instruction() && std::strcmp(testing::NameOf(way.gemm), "amx_bf16") == 0) {
    for (int64_t first = 0; first < num_k; first += 32) {
      float even = 0, odd = 0;
      for (int64_t k = first; k < std::min(num_k, first + 32); ++k) {
        float& part = k % 2 == 0 ? even : odd;
        part = std::fma(x[k], w[k], part);
      }
      sum += even + odd;
    }
    return sum;
  }
  const bool fuses = std::strcmp(testing::NameOf(way.gemm), "base") != 0;
  for (int64_t i = 0; i < num_k; ++i) {
    const int64_t k = way.by_instruction() ? i ^ 1 : i;
    const float product = x[k] * w[k];
    sum = fuses ? std::fma(x[k], w[k], sum) : sum + product;
  }
  return sum;
}

// Sums that are rounded at each step distinguish the orders.
TEST(PackedGemm, SumsInTheOrderOfTheHeader) {
  constexpr int64_t kK = 2200, kM = 37;
  for (const Way& way : AllWays()) {
    const std::vector<float> x = way.Random(kK * kM, 7);
    const std::vector<float> w = way.Random(kK, 8);
    std::vector<float> expected, sums(kM);
    for (int64_t m = 0; m < kM; ++m) {
      expected.push_back(SumInOrder(way, x.data() + m * kK, w.data(), kK));
    }
    way.Multiply(x, kK, w, kM, 1, kK, sums.data(), 1);
    EXPECT_EQ(sums, expected) << way.name();
  }
}

// A product over K is the product over its second part, accumulated onto that over its first, bit
// for bit, if the first part is a multiple of every instruction's inputs.
TEST(PackedGemm, SumsContinueFromC) {
  constexpr int64_t kK = 1400, kFirst = 96, kN = 70;
  for (const Way& way : AllWays()) {
    for (const int64_t num_m : {1, 16, 17, 40}) {
      const std::vector<float> x = way.Random(num_m * kK, 11);
      const std::vector<float> w = way.Random(kN * kK, 12);
      std::vector<float> first_w, second_w;
      for (int64_t n = 0; n < kN; ++n) {
        const auto row = w.begin() + n * kK;
        first_w.insert(first_w.end(), row, row + kFirst);
        second_w.insert(second_w.end(), row + kFirst, row + kK);
      }
      const std::vector<float> second_x(x.begin() + kFirst, x.end());
      std::vector<float> expected(num_m * kN), sums(num_m * kN);
      way.Multiply(x, kK, w, num_m, kN, kK, expected.data(), kN);
      way.Multiply(x, kK, first_w, num_m, kN, kFirst, sums.data(), kN);
      way.Multiply(second_x, kK, second_w, num_m, kN, kK - kFirst, sums.data(), kN,
                   /*accumulate=*/true);
      EXPECT_EQ(sums, expected) << way.name() << ", " << num_m << " rows";
    }
  }
}

TEST(PackedGemm, RoundsToNearestEven) {
  const float inf = std::numeric_limits<float>::infinity();
  struct Case {
    float from, bias;
    Bfloat16Bits rounded;
  };
  // 1 + 2^-8 is halfway between 1 and the next bfloat16, 1 + 3 * 2^-8 between the next two.
  const std::vector<Case> cases = {{1.00390625f, 0, 0x3f80}, {1.01171875f, 0, 0x3f82},
                                   {1.0f, 0.00391f, 0x3f81}, {-2.5f, 0.5f, 0xc000},
                                   {3.4e38f, 0, 0x7f80},     {inf, 1, 0x7f80},
                                   {-inf, 1, 0xff80},        {inf, -inf, 0x7fc0},
                                   {1e-40f, 0, 0x0001},      {-0.0f, -0.0f, 0x8000}};
  for (const PackedGemm* gemm : testing::SupportedPackedGemms()) {
    std::vector<float> from, bias;
    for (size_t i = 0; i < 40; ++i) {
      from.push_back(cases[i % cases.size()].from);
      bias.push_back(cases[i % cases.size()].bias);
    }
    std::vector<Bfloat16Bits> to(41, 77);
    gemm->add_and_round(from.data(), bias.data(), 40, to.data());
    for (size_t i = 0; i < 40; ++i) {
      EXPECT_EQ(to[i], cases[i % cases.size()].rounded) << testing::NameOf(gemm) << ", case " << i;
    }
    EXPECT_EQ(to[40], 77) << "written beyond the end";
    gemm->add_and_round(from.data(), nullptr, 1, to.data() + 40);
    EXPECT_EQ(to[40], 0x3f80) << testing::NameOf(gemm);
  }
}

// A [R, M] and B [R, N] are rows that are apart, pairs are packed by rows, and A^T B is added to C.
TEST(PackedGemm, AddsTransposedProducts) {
  struct Shape {
    int64_t r, m, n;
  };
  for (const Way& way : AllWays()) {
    // Pairs are multiplied by the instruction or not at all; otherwise callers widen them to
    // float32.
    if (way.pairs && way.gemm->add_transposed_pairs == nullptr) continue;
    if (way.coded) continue;  // gradients use plain panels
    // Odd numbers of rows, and more than the steps that are summed at a time.
    for (const Shape& shape :
         {Shape{1, 1, 1}, {2, 64, 64}, {7, 13, 33}, {300, 50, 32}, {257, 64, 5}, {1100, 40, 64}}) {
      const int64_t a_stride = shape.m + 2, b_stride = shape.n + 1, c_stride = shape.n + 3;
      const std::vector<float> a = way.Random(shape.r * a_stride, 1);
      const std::vector<float> b = way.Random(shape.r * b_stride, 2);
      std::vector<float> c(shape.m * c_stride, 3);
      if (way.pairs) {
        const auto pack = [&](const std::vector<float>& x, int64_t stride, int64_t num_n,
                              bool first_factor) {
          std::vector<Bfloat16Bits> narrow(x.size());
          std::transform(x.begin(), x.end(), narrow.begin(), UpperHalf);
          std::vector<const Bfloat16Bits*> rows;
          for (int64_t i = 0; i < shape.r; ++i) rows.push_back(narrow.data() + i * stride);
          const int64_t elements =
              first_factor ? way.gemm->first_factor_elements(shape.r) : PairPanelElements(shape.r);
          std::vector<Bfloat16Bits> panel(elements, 0x7fc0);
          const auto pack_rows = first_factor ? way.gemm->pack_first_factor : PackPairRows;
          pack_rows(rows.data(), 0, shape.r, num_n, panel.data());
          return panel;
        };
        way.gemm->add_transposed_pairs(pack(a, a_stride, shape.m, true).data(),
                                       pack(b, b_stride, shape.n, false).data(), shape.r, shape.m,
                                       shape.n, c.data(), c_stride);
      } else {
        way.gemm->add_transposed_floats(a.data(), a_stride, b.data(), b_stride, shape.r, shape.m,
                                        shape.n, c.data(), c_stride);
      }
      for (int64_t m = 0; m < shape.m; ++m) {
        for (int64_t n = 0; n < c_stride; ++n) {
          double sum = 3, size = 3;
          for (int64_t r = 0; r < shape.r && n < shape.n; ++r) {
            const double product =
                static_cast<double>(a[r * a_stride + m]) * static_cast<double>(b[r * b_stride + n]);
            sum += product;
            size += std::abs(product);
          }
          ASSERT_NEAR(c[m * c_stride + n], sum, SumTolerance(shape.r) * size)
              << way.name() << ": " << shape.r << " rows, at " << m << ", " << n;
        }
      }
    }
  }
}

}  // namespace
}  // namespace taopd::cpu
