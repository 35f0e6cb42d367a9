// The sparse backward products of the head against the dense ones in float64.
#include "kernels/torch/head/head_gemm_sparse.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/kernels/torch/random_tensor.h"
#include "tests/kernels/torch/threads_restored.h"

namespace taopd::testing {
namespace {

// float32 sums of products, relative to the largest element.
constexpr double kSparseTolerance = 5e-6;

// Ids repeat across rows, and some entries do not exist.
TEST(HeadGemmSparse, MatchesTheDenseProducts) {
  constexpr int64_t kRows = 40, kHidden = 21, kVocabulary = 300, kEntries = 7;
  const at::Tensor hidden = RandomTensor({kRows, kHidden}, 13);
  const at::Tensor lm_head = RandomTensor({kVocabulary, kHidden}, 14);
  at::Tensor ids = at::empty({kRows, kEntries}, at::kInt);
  at::Tensor d_logits = at::zeros({kRows, kVocabulary});
  const at::Tensor values = RandomTensor({kRows, kEntries}, 15);
  for (int64_t n = 0; n < kRows; ++n) {
    for (int64_t i = 0; i < kEntries; ++i) {
      const bool present = n % 4 != 0 || i < 4;
      const int64_t id = i + 1 < kEntries ? (n % 5) * 7 + i * 3 : 299 - n % 2;
      ids[n][i] = present ? id : -1;
      if (present) d_logits[n][id] = values[n][i];
    }
  }
  const cpu::LogitEntries entries{ids.const_data_ptr<int32_t>(), values.const_data_ptr<float>(),
                                  kRows, kEntries};
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor h = hidden.to(dtype);
    const at::Tensor w = lm_head.to(dtype);
    const at::Tensor before = RandomTensor({kVocabulary, kHidden}, 16);
    const at::Tensor exact = d_logits.to(at::kDouble);
    at::Tensor first;
    for (int num_threads : {1, 3}) {
      const ThreadsRestored threads(num_threads);
      at::Tensor d_lm_head = before.clone();
      const at::Tensor d_hidden = CpuHeadBackwardSparse(entries, h, w, d_lm_head);
      ExpectRelative(d_hidden, at::mm(exact, w.to(at::kDouble)), kSparseTolerance, "d hidden");
      ExpectRelative(d_lm_head, at::mm(exact.t(), h.to(at::kDouble)) + before.to(at::kDouble),
                     kSparseTolerance, "d lm_head");
      if (!first.defined()) first = d_lm_head;
      EXPECT_TRUE(at::equal(first, d_lm_head));
      EXPECT_TRUE(at::equal(CpuHeadBackwardSparse(entries, h, w, {}), d_hidden));
    }
  }
  EXPECT_TRUE(SparseBackwardIsCheaper(64, 151936));
  EXPECT_FALSE(SparseBackwardIsCheaper(100, 100));
}

}  // namespace
}  // namespace taopd::testing
