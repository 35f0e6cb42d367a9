// The head's products on the CPU against float64, for every way in which this processor can compute
// them: float32 panels, and pairs of bfloat16 with each instruction that multiplies them.
#include "kernels/torch/gemm/head_gemm_cpu.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "kernels/torch/gemm/packed_weight.h"
#include "tests/kernels/cpu/supported_sets.h"
#include "tests/kernels/torch/random_tensor.h"
#include "tests/kernels/torch/threads_restored.h"

namespace taopd::testing {
namespace {

// float32 sums of products, relative to the largest element.
constexpr double kFloatTolerance = 5e-6;
// bfloat16 pairs round hidden times the row's scale to 8 bits; errors of the terms are independent.
constexpr double kBfloat16GradientTolerance = 4e-3;

// A gradient of logits from a matrix, in the form in which a chunk of the student's rows leaves it
// (kernels/cpu/head/logit_gradient.h).
struct BlockedGradient {
  // Row n has the scale 0.5 - n and block b the factor 2^(-(b + n) % 5), which the products must
  // undo. `dtype` is that of the weights.
  BlockedGradient(const at::Tensor& d_logits_CV, at::ScalarType dtype) {
    const int64_t num_rows = d_logits_CV.size(0);
    const int64_t vocab_size = d_logits_CV.size(1);
    const int64_t num_blocks = (vocab_size + kVocabularyBlock - 1) / kVocabularyBlock;
    row_scale_C = 0.5 - at::arange(num_rows, at::kFloat);
    factors_BC = at::exp2(
        -(at::arange(num_blocks, at::kFloat).unsqueeze(1) + at::arange(num_rows, at::kFloat))
             .remainder(5));
    const at::Tensor factors_VC =
        factors_BC.repeat_interleave(kVocabularyBlock, 0).narrow(0, 0, vocab_size);
    exps_VC = (d_logits_CV.t() / row_scale_C / factors_VC).to(dtype).contiguous();
    // The numbers after rounding.
    d_logits_exact_CV =
        (exps_VC.to(at::kDouble) * factors_VC * row_scale_C.to(at::kDouble)).t().contiguous();
    view.dtype = dtype == at::kBFloat16 ? DataType::kBFloat16 : DataType::kFloat32;
    view.exps_VC = exps_VC.const_data_ptr();
    view.factors_BC = factors_BC.const_data_ptr<float>();
    view.row_scale_C = row_scale_C.const_data_ptr<float>();
    view.num_rows = num_rows;
    view.vocab_size = vocab_size;
    view.block_size = kVocabularyBlock;
  }

  at::Tensor exps_VC, factors_BC, row_scale_C, d_logits_exact_CV;
  cpu::LogitGradient view;
};

struct Shape {
  int64_t num_rows, hidden_size, vocab_size;
};

class HeadGemmShapes : public ::testing::TestWithParam<Shape> {};

TEST_P(HeadGemmShapes, MatchFloat64) {
  const auto [num_rows, hidden_size, vocab_size] = GetParam();
  const at::Tensor hidden = RandomTensor({num_rows, hidden_size}, 1);
  const at::Tensor lm_head = RandomTensor({vocab_size, hidden_size}, 2);
  const at::Tensor d_logits = RandomTensor({num_rows, vocab_size}, 3);
  const at::Tensor before = RandomTensor({vocab_size, hidden_size}, 4);
  for (bool bf16 : {false, true}) {
    const at::ScalarType dtype = bf16 ? at::kBFloat16 : at::kFloat;
    const at::Tensor h = hidden.to(dtype);
    const at::Tensor w = lm_head.to(dtype);
    const at::Tensor exact_h = h.to(at::kDouble);
    const at::Tensor exact_w = w.to(at::kDouble);
    for (const cpu::PackedGemm* gemm : SupportedPackedGemms()) {
      const bool pairs = bf16 && gemm->multiply_pairs != nullptr;
      const std::string what = std::string(bf16 ? "bf16, " : "float, ") + NameOf(gemm);
      // Rows of a wider tensor: nothing may be written past them.
      const at::Tensor wide = at::full({num_rows, vocab_size + 3}, 7.0f);
      const at::Tensor logits = wide.narrow(1, 0, vocab_size);
      CpuHeadLogits(h, w, logits, *gemm);
      ExpectRelative(logits, at::mm(exact_h, exact_w.t()), kFloatTolerance, what + ": logits");
      EXPECT_TRUE(wide.narrow(1, vocab_size, 3).eq(7).all().item<bool>()) << what;

      const BlockedGradient gradient(d_logits, dtype);
      const at::Tensor& exact_d = gradient.d_logits_exact_CV;
      at::Tensor d_lm_head = before.clone();
      const at::Tensor d_hidden = CpuHeadBackward(gradient.view, h, w, d_lm_head, *gemm);
      ExpectRelative(d_hidden, at::mm(exact_d, exact_w), kFloatTolerance, what + ": d hidden");
      ExpectRelative(d_lm_head, at::mm(exact_d.t(), exact_h) + before.to(at::kDouble),
                     pairs ? kBfloat16GradientTolerance : kFloatTolerance, what + ": d lm_head");
      EXPECT_TRUE(at::equal(CpuHeadBackward(gradient.view, h, w, {}, *gemm), d_hidden)) << what;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, HeadGemmShapes,
                         ::testing::Values(Shape{1, 1, 1}, Shape{1, 8, 5}, Shape{3, 7, 95},
                                           Shape{17, 70, 97}, Shape{33, 64, 192},
                                           Shape{97, 130, 1001}, Shape{130, 160, 14000}));

// The guarantee on which the engine relies: a row's logits have the same bits whatever else is in
// the call, for every way to compute them, including this processor's bfloat16 instructions.
TEST(HeadGemmCpu, LogitsDoNotDependOnOtherRowsOrThreads) {
  const ThreadsRestored threads;
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

// A trainer's logits are those of the engine, which packs lm_head.
TEST(HeadGemmCpu, LogitsOfPairsAreThoseOfPackedWeights) {
  const at::Tensor hidden = RandomTensor({70, 200}, 5).to(at::kBFloat16);
  const at::Tensor lm_head = RandomTensor({777, 200}, 6).to(at::kBFloat16);
  const PackedWeight packed({lm_head});
  for (const cpu::PackedGemm* gemm : SupportedPackedGemms()) {
    if (gemm->multiply_pairs == nullptr) continue;
    const at::Tensor logits = at::empty({70, 777}), expected = at::empty({70, 777});
    CpuHeadLogits(hidden, lm_head, logits, *gemm);
    packed.MultiplyInto(hidden, expected, *gemm);
    EXPECT_TRUE(at::equal(logits, expected)) << NameOf(gemm);
  }
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

}  // namespace
}  // namespace taopd::testing
