// The head's products on the CPU against float64, for every way to compute them: float32 panels,
// bfloat16 pairs with a plain loop in place of the processor's instructions, and with these
// instructions if the processor has them.
#include "kernels/torch/gemm/head_gemm_cpu.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernels/torch/logit_gradient.h"
#include "tests/kernels/torch/plain_pairs.h"
#include "tests/kernels/torch/random_tensor.h"

namespace taopd {
namespace {

using testing::BlockedGradient;
using testing::ExpectRelative;
using testing::kPlainPairs;
using testing::RandomTensor;

// float32 sums of products, relative to the largest element.
constexpr double kFloatTolerance = 5e-6;
// bfloat16 pairs round hidden times the row's scale to 8 bits; errors of the terms are independent.
constexpr double kBfloat16GradientTolerance = 4e-3;

constexpr Bfloat16Gemm kWiden{};

struct Shape {
  int64_t num_rows, hidden_size, vocabulary_size;
};

class HeadGemmShapes : public ::testing::TestWithParam<Shape> {};

TEST_P(HeadGemmShapes, MatchFloat64) {
  const auto [num_rows, hidden_size, vocabulary_size] = GetParam();
  const at::Tensor hidden = RandomTensor({num_rows, hidden_size}, 1);
  const at::Tensor lm_head = RandomTensor({vocabulary_size, hidden_size}, 2);
  const at::Tensor d_logits = RandomTensor({num_rows, vocabulary_size}, 3);
  const at::Tensor before = RandomTensor({vocabulary_size, hidden_size}, 4);
  for (bool bf16 : {false, true}) {
    const at::ScalarType dtype = bf16 ? at::kBFloat16 : at::kFloat;
    const at::Tensor h = hidden.to(dtype);
    const at::Tensor w = lm_head.to(dtype);
    const at::Tensor exact_h = h.to(at::kDouble);
    const at::Tensor exact_w = w.to(at::kDouble);
    std::vector<std::pair<std::string, Bfloat16Gemm>> ways = {{"widened", kWiden}};
    if (bf16) ways.emplace_back("plain pairs", kPlainPairs);
    if (bf16 && BestBfloat16Gemm().multiply != nullptr) {
      ways.emplace_back("this processor's pairs", BestBfloat16Gemm());
    }
    for (const auto& [way, bfloat16] : ways) {
      const bool pairs = bfloat16.multiply != nullptr;
      const std::string what = std::string(bf16 ? "bf16, " : "float, ") + way;
      // Rows of a wider tensor: nothing may be written past them.
      const at::Tensor wide = at::full({num_rows, vocabulary_size + 3}, 7.0f);
      const at::Tensor logits = wide.narrow(1, 0, vocabulary_size);
      CpuHeadLogits(h, w, logits, bfloat16);
      ExpectRelative(logits, at::mm(exact_h, exact_w.t()), kFloatTolerance, what + ": logits");
      EXPECT_TRUE(wide.narrow(1, vocabulary_size, 3).eq(7).all().item<bool>()) << what;

      const BlockedGradient gradient(d_logits, dtype);
      const at::Tensor& exact_d = gradient.d_logits_exact_CV;
      at::Tensor d_lm_head = before.clone();
      const at::Tensor d_hidden = CpuHeadBackward(gradient.view, h, w, d_lm_head, bfloat16);
      ExpectRelative(d_hidden, at::mm(exact_d, exact_w), kFloatTolerance, what + ": d hidden");
      const bool rounded = pairs && hidden_size % 2 == 0;
      ExpectRelative(d_lm_head, at::mm(exact_d.t(), exact_h) + before.to(at::kDouble),
                     rounded ? kBfloat16GradientTolerance : kFloatTolerance, what + ": d lm_head");
      EXPECT_TRUE(at::equal(CpuHeadBackward(gradient.view, h, w, {}, bfloat16), d_hidden)) << what;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, HeadGemmShapes,
                         ::testing::Values(Shape{1, 1, 1}, Shape{1, 8, 5}, Shape{3, 7, 95},
                                           Shape{17, 70, 97}, Shape{33, 64, 192},
                                           Shape{97, 130, 1001}));

// The guarantee on which the engine relies: a row's logits have the same bits whatever else is in
// the call, for every way to compute them, including this processor's bfloat16 instructions.
TEST(HeadGemmCpu, LogitsDoNotDependOnOtherRowsOrThreads) {
  const at::Tensor hidden = RandomTensor({37, 96}, 5);
  const at::Tensor lm_head = RandomTensor({777, 96}, 6);
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor h = hidden.to(dtype);
    const at::Tensor w = lm_head.to(dtype);
    at::set_num_threads(2);
    const at::Tensor whole = at::empty({37, 777});
    CpuHeadLogits(h, w, whole);
    at::set_num_threads(1);
    for (int64_t first : {0, 5, 36}) {
      for (int64_t num : {1, 7, 32}) {
        if (first + num > 37) continue;
        const at::Tensor part = at::empty({num, 777});
        CpuHeadLogits(h.narrow(0, first, num), w, part);
        EXPECT_TRUE(at::equal(part, whole.narrow(0, first, num))) << first << ", " << num;
      }
    }
  }
}

TEST(HeadGemmCpu, GradientsDoNotDependOnThreads) {
  const at::Tensor hidden = RandomTensor({9, 32}, 7);
  const at::Tensor lm_head = RandomTensor({1500, 32}, 8);
  const BlockedGradient gradient(RandomTensor({9, 1500}, 9), at::kFloat);
  at::set_num_threads(1);
  at::Tensor one = at::zeros({1500, 32});
  const at::Tensor d_hidden_one = CpuHeadBackward(gradient.view, hidden, lm_head, one);
  at::set_num_threads(3);
  at::Tensor three = at::zeros({1500, 32});
  const at::Tensor d_hidden_three = CpuHeadBackward(gradient.view, hidden, lm_head, three);
  EXPECT_TRUE(at::equal(one, three));
  EXPECT_TRUE(at::equal(d_hidden_three, d_hidden_one));
}

// Strided inputs: a transposed lm_head, and every second row of hidden.
TEST(HeadGemmCpu, TakesInputsThatAreNotContiguous) {
  const at::Tensor lm_head = RandomTensor({16, 300}, 11).t();
  // Every other row, and adjacent columns, as elementwise operations leave them.
  for (const at::Tensor& hidden :
       {RandomTensor({20, 16}, 10).slice(0, 0, 20, 2), RandomTensor({16, 10}, 10).t()}) {
    const at::Tensor logits = at::empty({10, 300});
    CpuHeadLogits(hidden, lm_head, logits);
    ExpectRelative(logits, at::mm(hidden.to(at::kDouble), lm_head.to(at::kDouble).t()),
                   kFloatTolerance, "logits");
    const at::Tensor d_logits = RandomTensor({10, 300}, 12);
    at::Tensor d_lm_head = at::zeros({300, 16});
    const BlockedGradient gradient(d_logits, at::kFloat);
    const at::Tensor d_hidden = CpuHeadBackward(gradient.view, hidden, lm_head, d_lm_head);
    ExpectRelative(d_hidden, at::mm(d_logits.to(at::kDouble), lm_head.to(at::kDouble)),
                   kFloatTolerance, "d hidden");
    ExpectRelative(d_lm_head, at::mm(d_logits.t().to(at::kDouble), hidden.to(at::kDouble)),
                   kFloatTolerance, "d lm_head");
  }
}

TEST(HeadGemmCpu, SaysHowItComputes) {
  EXPECT_NE(CpuHeadGemmName(at::kFloat).find("float32 panels"), std::string::npos);
  EXPECT_NE(CpuHeadGemmName(at::kBFloat16).find("bfloat16"), std::string::npos);
}

}  // namespace
}  // namespace taopd
