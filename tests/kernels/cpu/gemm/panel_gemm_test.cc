// The blocks' matrix product against plain float64 loops, for every instruction set of this
// processor.
#include "kernels/cpu/gemm/panel_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/kernels/cpu/normal_floats.h"
#include "tests/kernels/cpu/supported_sets.h"

namespace taopd::cpu {
namespace {

using testing::NormalFloats;
using testing::SupportedSets;
using testing::UpperHalf;

int64_t PanelElements(const PanelGemm& gemm, int64_t num_k, int64_t num_n) {
  return (num_n + gemm.panel_width - 1) / gemm.panel_width * gemm.panel_width * num_k;
}

int64_t Index(ElementOrder order, int64_t stride, int64_t i, int64_t j) {
  return order == ElementOrder::kRows ? i * stride + j : i + j * stride;
}

TEST(PanelGemm, MatchesPlainLoopsForAllShapesAndOrders) {
  struct Shape {
    int64_t m, n, k;
  };
  std::vector<Shape> shapes = {
      {144, 96, 300}, {13, 33, 1030}, {12, 64, 64}, {50, 1, 7}, {14, 300, 600}};  // the last: far
  for (int64_t m = 1; m <= 14; ++m) shapes.push_back({m, 2 * m + 1, 3 * m});
  for (InstructionSet set : SupportedSets()) {
    const PanelGemm& gemm = PanelGemmOf(set);
    for (const Shape& shape : shapes) {
      for (ElementOrder a_order : {ElementOrder::kRows, ElementOrder::kColumns}) {
        for (ElementOrder b_order : {ElementOrder::kRows, ElementOrder::kColumns}) {
          const int64_t a_stride = (a_order == ElementOrder::kRows ? shape.k : shape.m) + 3;
          const int64_t b_stride = (b_order == ElementOrder::kRows ? shape.n : shape.k) + 5;
          const int64_t c_stride = shape.n + 2;
          const std::vector<float> a = NormalFloats(a_stride * std::max(shape.m, shape.k), 1);
          const std::vector<float> b = NormalFloats(b_stride * std::max(shape.n, shape.k), 2);
          const std::vector<float> before = NormalFloats(shape.m * c_stride, 3);
          std::vector<float> panels(PanelElements(gemm, shape.k, shape.n), NAN);
          gemm.pack(b.data(), b_order, b_stride, shape.k, shape.n, panels.data());
          for (bool accumulate : {false, true}) {
            std::vector<float> c = before;
            gemm.multiply(a.data(), a_order, a_stride, panels.data(), shape.m, shape.n, shape.k,
                          c.data(), c_stride, accumulate);
            for (int64_t m = 0; m < shape.m; ++m) {
              for (int64_t n = 0; n < c_stride; ++n) {
                const int64_t at = m * c_stride + n;
                if (n >= shape.n) {
                  ASSERT_EQ(c[at], before[at]) << "written beyond a row";
                  continue;
                }
                double sum = accumulate ? before[at] : 0;
                double size = std::abs(sum);
                for (int64_t k = 0; k < shape.k; ++k) {
                  const double product = static_cast<double>(a[Index(a_order, a_stride, m, k)]) *
                                         b[Index(b_order, b_stride, k, n)];
                  sum += product;
                  size += std::abs(product);
                }
                ASSERT_NEAR(c[at], sum, testing::SumTolerance(shape.k) * size)
                    << NameOf(set) << ": " << shape.m << " x " << shape.n << " x " << shape.k
                    << " at " << m << ", " << n;
              }
            }
          }
        }
      }
    }
  }
}

TEST(PanelGemm, WidensBfloat16) {
  const std::vector<float> values = NormalFloats(37 * 21, 4);
  std::vector<Bfloat16Bits> narrow;
  std::vector<float> rounded;
  for (float value : values) {
    narrow.push_back(UpperHalf(value));
    rounded.push_back(testing::Widened(UpperHalf(value)));
  }
  for (InstructionSet set : SupportedSets()) {
    const PanelGemm& gemm = PanelGemmOf(set);
    std::vector<float> wide(values.size());
    gemm.widen(narrow.data(), static_cast<int64_t>(narrow.size()), wide.data());
    EXPECT_EQ(wide, rounded) << NameOf(set);
    for (ElementOrder order : {ElementOrder::kRows, ElementOrder::kColumns}) {
      const int64_t num_k = order == ElementOrder::kRows ? 37 : 21;
      const int64_t num_n = order == ElementOrder::kRows ? 21 : 37;
      std::vector<float> from_bf16(PanelElements(gemm, num_k, num_n));
      std::vector<float> from_float(from_bf16.size());
      gemm.pack_bf16(narrow.data(), order, 21, num_k, num_n, from_bf16.data());
      gemm.pack(rounded.data(), order, 21, num_k, num_n, from_float.data());
      EXPECT_EQ(from_bf16, from_float) << NameOf(set);
    }
  }
}

// A row and a column of the product have the same bits whatever they are computed with.
TEST(PanelGemm, ElementsDoNotDependOnTheOthers) {
  constexpr int64_t kM = 31, kN = 45, kK = 517;
  const std::vector<float> a = NormalFloats(kM * kK, 5);
  const std::vector<float> b = NormalFloats(kN * kK, 6);
  for (InstructionSet set : SupportedSets()) {
    const PanelGemm& gemm = PanelGemmOf(set);
    std::vector<float> panels(PanelElements(gemm, kK, kN));
    gemm.pack(b.data(), ElementOrder::kColumns, kK, kK, kN, panels.data());
    std::vector<float> whole(kM * kN);
    gemm.multiply(a.data(), ElementOrder::kRows, kK, panels.data(), kM, kN, kK, whole.data(), kN,
                  false);
    for (int64_t m = 0; m < kM; m += 3) {
      for (int64_t n = 0; n < kN; n += 4) {
        std::vector<float> one_panel(PanelElements(gemm, kK, 1));
        gemm.pack(b.data() + n * kK, ElementOrder::kColumns, kK, kK, 1, one_panel.data());
        float one = 0;
        gemm.multiply(a.data() + m * kK, ElementOrder::kRows, kK, one_panel.data(), 1, 1, kK, &one,
                      1, false);
        ASSERT_EQ(one, whole[m * kN + n]) << NameOf(set) << " at " << m << ", " << n;
      }
    }
  }
}

}  // namespace
}  // namespace taopd::cpu
