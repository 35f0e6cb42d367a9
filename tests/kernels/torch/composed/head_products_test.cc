// The products of the composed heads against products in float64.
#include "kernels/torch/composed/head_products.h"

#include <gtest/gtest.h>

#include "tests/kernels/torch/random_tensor.h"

namespace taopd::testing {
namespace {

// Sums of float32 numbers, of up to 20,000 terms.
constexpr double kTolerance = 3e-6;

// A vocabulary of three blocks, of which the last is short.
TEST(ComposedHeadProducts, MatchFloat64) {
  constexpr int64_t kRows = 5, kHidden = 33, kVocabulary = 2 * 8192 + 77;
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor hidden = RandomTensor({kRows, kHidden}, 1).to(dtype);
    const at::Tensor lm_head = RandomTensor({kVocabulary, kHidden}, 2).to(dtype);
    const at::Tensor hidden_d = hidden.to(at::kDouble), lm_head_d = lm_head.to(at::kDouble);
    const at::Tensor logits = at::empty({kRows, kVocabulary});
    HeadLogitsComposed(hidden, lm_head, logits);
    ExpectRelative(logits, at::mm(hidden_d, lm_head_d.t()), kTolerance, "logits");

    const at::Tensor d_logits = RandomTensor({kRows, kVocabulary}, 3);
    const at::Tensor scale = RandomTensor({kRows, 1}, 4);
    const at::Tensor d_logits_d = d_logits.to(at::kDouble) * scale.to(at::kDouble);
    const at::Tensor d_lm_head = at::ones({kVocabulary, kHidden});
    const at::Tensor d_hidden = HeadBackwardComposed(d_logits, scale, hidden, lm_head, d_lm_head);
    EXPECT_EQ(d_hidden.scalar_type(), at::kFloat);
    ExpectRelative(d_hidden, at::mm(d_logits_d, lm_head_d), kTolerance, "d hidden");
    ExpectRelative(d_lm_head, at::mm(d_logits_d.t(), hidden_d) + 1, kTolerance, "d lm_head");
    EXPECT_TRUE(
        at::equal(HeadBackwardComposed(d_logits, scale, hidden, lm_head, at::Tensor()), d_hidden));
  }
}

}  // namespace
}  // namespace taopd::testing
