// The head's products on the CPU against float64, on every way to compute them: float32 panels,
// bfloat16 pairs with a plain loop in the place of the processor's instructions, and these
// instructions where the processor has them.
#include "kernels/torch/gemm/head_gemm_cpu.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/torch/gemm/head_gemm_sparse.h"
#include "tests/kernels/torch/logit_gradient.h"
#include "tests/kernels/torch/plain_pairs.h"

namespace taopd {
namespace {

using testing::BlockedGradient;
using testing::kPlainPairs;

// float32 sums of products, relative to the largest element.
constexpr double kFloatTolerance = 5e-6;
// bfloat16 pairs round hidden times the row's scale to 8 bits; errors of the terms are independent.
constexpr double kBfloat16GradientTolerance = 4e-3;

constexpr Bfloat16Gemm kWiden{};

at::Tensor Random(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed),
                   at::TensorOptions().dtype(at::kFloat));
}

void ExpectClose(const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  const double size = std::max(1.0, expected.abs().max().item<double>());
  EXPECT_LE((actual.to(at::kDouble) - expected).abs().max().item<double>(), tolerance * size)
      << what;
}

struct Shape {
  int64_t num_rows, hidden_size, vocabulary_size;
};

class HeadGemmShapes : public ::testing::TestWithParam<Shape> {};

TEST_P(HeadGemmShapes, MatchFloat64) {
  const auto [num_rows, hidden_size, vocabulary_size] = GetParam();
  const at::Tensor hidden = Random({num_rows, hidden_size}, 1);
  const at::Tensor lm_head = Random({vocabulary_size, hidden_size}, 2);
  const at::Tensor d_logits = Random({num_rows, vocabulary_size}, 3);
  const at::Tensor before = Random({vocabulary_size, hidden_size}, 4);
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
      // Rows of a wider tensor: nothing may be written beyond them.
      const at::Tensor wide = at::full({num_rows, vocabulary_size + 3}, 7.0f);
      const at::Tensor logits = wide.narrow(1, 0, vocabulary_size);
      CpuHeadLogits(h, w, logits, bfloat16);
      ExpectClose(logits, at::mm(exact_h, exact_w.t()), kFloatTolerance, what + ": logits");
      EXPECT_TRUE(wide.narrow(1, vocabulary_size, 3).eq(7).all().item<bool>()) << what;

      const BlockedGradient gradient(d_logits, dtype);
      const at::Tensor& exact_d = gradient.d_logits_exact_CV;
      at::Tensor d_lm_head = before.clone();
      const at::Tensor d_hidden = CpuHeadBackward(gradient.view, h, w, d_lm_head, bfloat16);
      ExpectClose(d_hidden, at::mm(exact_d, exact_w), kFloatTolerance, what + ": d hidden");
      const bool rounded = pairs && hidden_size % 2 == 0;
      ExpectClose(d_lm_head, at::mm(exact_d.t(), exact_h) + before.to(at::kDouble),
                  rounded ? kBfloat16GradientTolerance : kFloatTolerance, what + ": d lm_head");
      EXPECT_TRUE(at::equal(CpuHeadBackward(gradient.view, h, w, {}, bfloat16), d_hidden)) << what;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, HeadGemmShapes,
                         ::testing::Values(Shape{1, 1, 1}, Shape{1, 8, 5}, Shape{3, 7, 95},
                                           Shape{17, 70, 97}, Shape{33, 64, 192},
                                           Shape{97, 130, 1001}));

// The promise of the engine: a row's logits are the same bits whatever else is in the call.
// Without OpenMP at compile time at::parallel_for is a plain loop, and nothing else would tell.
TEST(ParallelFor, RunsOnSeveralThreads) {
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  std::array<int, 3> thread_of{-1, -1, -1};
  at::parallel_for(0, 3, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) thread_of[i] = at::get_thread_num();
  });
  at::set_num_threads(before);
  EXPECT_EQ(std::set<int>(thread_of.begin(), thread_of.end()).size(), 3u);
}

TEST(HeadGemm, LogitsDoNotDependOnOtherRowsOrThreads) {
  const at::Tensor hidden = Random({37, 96}, 5);
  const at::Tensor lm_head = Random({777, 96}, 6);
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

TEST(HeadGemm, GradientOfTheHeadDoesNotDependOnThreads) {
  const at::Tensor hidden = Random({9, 32}, 7);
  const at::Tensor lm_head = Random({1500, 32}, 8);
  const BlockedGradient gradient(Random({9, 1500}, 9), at::kFloat);
  at::set_num_threads(1);
  at::Tensor one = at::zeros({1500, 32});
  const at::Tensor d_hidden_one = CpuHeadBackward(gradient.view, hidden, lm_head, one);
  at::set_num_threads(3);
  at::Tensor three = at::zeros({1500, 32});
  const at::Tensor d_hidden_three = CpuHeadBackward(gradient.view, hidden, lm_head, three);
  EXPECT_TRUE(at::equal(one, three));
  ExpectClose(d_hidden_three, d_hidden_one.to(at::kDouble), kFloatTolerance, "d hidden");
}

// Strided inputs: a transposed lm_head, every second row of hidden.
TEST(HeadGemm, TakesInputsThatAreNotContiguous) {
  const at::Tensor lm_head = Random({16, 300}, 11).t();
  // Every other row; and columns that lie together, as elementwise operations leave them.
  for (const at::Tensor& hidden :
       {Random({20, 16}, 10).slice(0, 0, 20, 2), Random({16, 10}, 10).t()}) {
    const at::Tensor logits = at::empty({10, 300});
    CpuHeadLogits(hidden, lm_head, logits);
    ExpectClose(logits, at::mm(hidden.to(at::kDouble), lm_head.to(at::kDouble).t()),
                kFloatTolerance, "logits");
    const at::Tensor d_logits = Random({10, 300}, 12);
    at::Tensor d_lm_head = at::zeros({300, 16});
    const BlockedGradient gradient(d_logits, at::kFloat);
    const at::Tensor d_hidden = CpuHeadBackward(gradient.view, hidden, lm_head, d_lm_head);
    ExpectClose(d_hidden, at::mm(d_logits.to(at::kDouble), lm_head.to(at::kDouble)),
                kFloatTolerance, "d hidden");
    ExpectClose(d_lm_head, at::mm(d_logits.t().to(at::kDouble), hidden.to(at::kDouble)),
                kFloatTolerance, "d lm_head");
  }
}

// Repeated ids across rows, entries that are not there.
TEST(HeadGemmSparse, MatchesTheDenseProducts) {
  constexpr int64_t kRows = 40, kHidden = 21, kVocabulary = 300, kEntries = 7;
  const at::Tensor hidden = Random({kRows, kHidden}, 13);
  const at::Tensor lm_head = Random({kVocabulary, kHidden}, 14);
  at::Tensor ids = at::empty({kRows, kEntries}, at::kInt);
  at::Tensor d_logits = at::zeros({kRows, kVocabulary});
  const at::Tensor values = Random({kRows, kEntries}, 15);
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
    const at::Tensor before = Random({kVocabulary, kHidden}, 16);
    const at::Tensor exact = d_logits.to(at::kDouble);
    at::Tensor first;
    for (int threads : {1, 3}) {
      at::set_num_threads(threads);
      at::Tensor d_lm_head = before.clone();
      const at::Tensor d_hidden = CpuHeadBackwardSparse(entries, h, w, d_lm_head);
      ExpectClose(d_hidden, at::mm(exact, w.to(at::kDouble)), kFloatTolerance, "d hidden");
      ExpectClose(d_lm_head, at::mm(exact.t(), h.to(at::kDouble)) + before.to(at::kDouble),
                  kFloatTolerance, "d lm_head");
      if (!first.defined()) first = d_lm_head;
      EXPECT_TRUE(at::equal(first, d_lm_head));
      EXPECT_TRUE(at::equal(CpuHeadBackwardSparse(entries, h, w, {}), d_hidden));
    }
  }
  EXPECT_TRUE(SparseBackwardIsCheaper(64, 151936));
  EXPECT_FALSE(SparseBackwardIsCheaper(100, 100));
}

TEST(HeadGemm, SaysHowItComputes) {
  EXPECT_NE(CpuHeadGemmName(at::kFloat).find("float32 panels"), std::string::npos);
  EXPECT_NE(CpuHeadGemmName(at::kBFloat16).find("bfloat16"), std::string::npos);
}

}  // namespace
}  // namespace taopd
