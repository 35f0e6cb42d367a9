// Packed weights against products in float64, and the equality of rows on which the engine relies.
#include "kernels/torch/gemm/packed_weight.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/kernels/cpu/supported_sets.h"
#include "tests/kernels/torch/expect_throws.h"
#include "tests/kernels/torch/random_tensor.h"
#include "tests/kernels/torch/threads_restored.h"

namespace taopd::testing {
namespace {

constexpr at::ScalarType kTypes[] = {at::kBFloat16, at::kFloat, at::kHalf};

// Relative to the largest element. Sums of 1000 float32 products err by less than 1e-5.
constexpr double kSumTolerance = 1e-5;
// One additional rounding to `out`.
double ToleranceOf(at::ScalarType out) {
  if (out == at::kBFloat16) return kSumTolerance + std::ldexp(1.0, -8);
  if (out == at::kHalf) return kSumTolerance + std::ldexp(1.0, -11);
  return kSumTolerance;
}

at::Tensor ReferenceProduct(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor y = at::mm(x.to(at::kDouble), weight.to(at::kDouble).t());
  return bias.defined() ? y + bias.to(at::kDouble) : y;
}

class PackedWeightTest : public ::testing::Test {
  const ThreadsRestored threads_;
};

TEST_F(PackedWeightTest, MatchesFloat64) {
  struct Shape {
    int64_t m, n, k;
  };
  for (const Shape& shape :
       {Shape{1, 1, 1}, {1, 63, 64}, {3, 65, 77}, {7, 96, 1000}, {100, 130, 33}, {200, 320, 128}}) {
    for (const at::ScalarType dtype : kTypes) {
      const at::Tensor x = RandomTensor({shape.m, shape.k}, 1).to(dtype);
      const at::Tensor weight = RandomTensor({shape.n, shape.k}, 2).to(dtype);
      const PackedWeight packed({weight});
      EXPECT_EQ(packed.num_outputs(), shape.n);
      EXPECT_EQ(packed.num_inputs(), shape.k);
      EXPECT_EQ(packed.dtype(), dtype);
      for (const at::ScalarType out : {dtype, at::kFloat}) {
        const at::Tensor y = packed.Multiply(x, out);
        EXPECT_EQ(y.scalar_type(), out);
        ExpectRelative(y, ReferenceProduct(x, weight, {}), ToleranceOf(out),
                       std::to_string(shape.n) + " outputs, " + c10::toString(dtype));
      }
    }
  }
}

// q, k and v whose edges are inside of panels, the middle one with a bias.
TEST_F(PackedWeightTest, PartsFollowOneAnother) {
  for (const at::ScalarType dtype : kTypes) {
    const at::Tensor q = RandomTensor({70, 50}, 1).to(dtype);
    const at::Tensor k = RandomTensor({5, 50}, 2).to(dtype);
    const at::Tensor v = RandomTensor({90, 50}, 3).to(dtype);
    const at::Tensor bias = RandomTensor({5}, 4).to(dtype);
    const at::Tensor x = RandomTensor({9, 50}, 5).to(dtype);
    const PackedWeight packed({q, k, v}, {{}, bias, {}});
    const at::Tensor all_bias = at::cat({at::zeros({70}), bias.to(at::kFloat), at::zeros({90})});
    for (const at::ScalarType out : {dtype, at::kFloat}) {
      ExpectRelative(packed.Multiply(x, out), ReferenceProduct(x, at::cat({q, k, v}), all_bias),
                     ToleranceOf(out), c10::toString(dtype));
    }
    // An output does not depend on the part's place in the matrix.
    EXPECT_TRUE(at::equal(packed.Multiply(x, at::kFloat).slice(1, 75),
                          PackedWeight({v}).Multiply(x, at::kFloat)));
  }
}

// The property that the header promises: each row alone, in any batch, on any number of threads.
TEST_F(PackedWeightTest, RowsAreTheSameBitsInAnyBatchOnAnyThreads) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    const at::Tensor x = RandomTensor({513, 601}, 1).to(dtype);
    const PackedWeight packed({RandomTensor({200, 601}, 2).to(dtype)}, {RandomTensor({200}, 3)});
    for (const cpu::PackedGemm* gemm : SupportedPackedGemms()) {
      const auto multiply = [&](const at::Tensor& rows) {
        at::Tensor y = at::empty({rows.size(0), 200});
        packed.MultiplyInto(rows, y, *gemm);
        return y;
      };
      at::set_num_threads(1);
      std::vector<at::Tensor> alone;
      for (int64_t m = 0; m < 513; ++m) alone.push_back(multiply(x.narrow(0, m, 1)));
      const at::Tensor expected = at::cat(alone);
      for (int threads = 1; threads <= 4; ++threads) {
        at::set_num_threads(threads);
        ASSERT_TRUE(at::equal(multiply(x), expected)) << NameOf(gemm) << ", " << threads;
        for (int64_t rows = 1; rows <= 70; rows += threads == 1 ? 1 : 23) {
          const int64_t first = rows * 5 % 400;
          ASSERT_TRUE(
              at::equal(multiply(x.narrow(0, first, rows)), expected.narrow(0, first, rows)))
              << NameOf(gemm) << ", " << rows << " rows, " << threads << " threads";
        }
      }
    }
  }
}

// Weights for a single product are not coded, and have the same products.
TEST_F(PackedWeightTest, PlainPairsGiveTheBitsOfCodedOnes) {
  const at::Tensor weight = RandomTensor({150, 203}, 2).to(at::kBFloat16);
  const PackedWeight coded({weight}), plain({weight}, {}, {}, PackedWeight::Pairs::kPlain);
  EXPECT_TRUE(coded.is_coded());
  EXPECT_FALSE(plain.is_coded());
  for (const int64_t rows : {1, 20, 300}) {
    const at::Tensor x = RandomTensor({rows, 203}, 1).to(at::kBFloat16);
    EXPECT_TRUE(at::equal(plain.Multiply(x, at::kFloat), coded.Multiply(x, at::kFloat))) << rows;
  }
}

TEST_F(PackedWeightTest, SumsAreRoundedOnce) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor x = RandomTensor({5, 300}, 1).to(dtype);
    const at::Tensor bias = RandomTensor({130}, 3).to(dtype);
    const PackedWeight packed({RandomTensor({130, 300}, 2).to(dtype)}, {bias});
    EXPECT_TRUE(at::equal(packed.Multiply(x, dtype), packed.Multiply(x, at::kFloat).to(dtype)));
  }
}

TEST_F(PackedWeightTest, RowsMayHaveAnyStride) {
  for (const at::ScalarType dtype : kTypes) {
    const at::Tensor wide_x = RandomTensor({10, 100}, 1).to(dtype);
    const at::Tensor x = wide_x.narrow(1, 3, 40);
    const PackedWeight packed({RandomTensor({70, 40}, 2).to(dtype)});
    const at::Tensor expected = packed.Multiply(x.contiguous(), dtype);
    const at::Tensor y = at::full({10, 90}, 7, wide_x.options());
    packed.MultiplyInto(x, y.narrow(1, 11, 70));
    EXPECT_TRUE(at::equal(y.narrow(1, 11, 70), expected));
    EXPECT_TRUE(y.narrow(1, 0, 11).eq(7).all().item<bool>());
    EXPECT_TRUE(y.narrow(1, 81, 9).eq(7).all().item<bool>());
    // Columns that are not adjacent are copied.
    EXPECT_TRUE(at::equal(packed.Multiply(x.t().contiguous().t(), dtype), expected));
  }
}

TEST_F(PackedWeightTest, RefreshPacksWhatWasWritten) {
  for (const at::ScalarType dtype : kTypes) {
    at::Tensor a = RandomTensor({40, 30}, 1).to(dtype);
    at::Tensor b = RandomTensor({50, 30}, 2).to(dtype);
    at::Tensor bias = RandomTensor({50}, 3).to(dtype);
    const at::Tensor x = RandomTensor({4, 30}, 4).to(dtype);
    PackedWeight packed({a, b}, {{}, bias});
    const at::Tensor before = packed.Multiply(x, at::kFloat);
    EXPECT_FALSE(packed.Refresh());
    for (at::Tensor* written : {&a, &b, &bias}) {
      written->mul_(2);
      EXPECT_TRUE(packed.Refresh());
      EXPECT_FALSE(packed.Refresh());
    }
    // Twice the weights and the bias give exactly twice the sums.
    EXPECT_TRUE(at::equal(packed.Multiply(x, at::kFloat), before * 2));
    packed.DropSources();
    a.zero_();
    EXPECT_FALSE(packed.Refresh());
    EXPECT_TRUE(at::equal(packed.Multiply(x, at::kFloat), before * 2));
  }
}

// A teacher is loaded in inference mode and serves outside of it, or the other way around.
TEST_F(PackedWeightTest, InferenceTensorsArePackedOnce) {
  at::Tensor weight, bias;
  PackedWeight packed;
  {
    const c10::InferenceMode inference;
    weight = RandomTensor({40, 30}, 1);
    bias = RandomTensor({40}, 2);
    packed = PackedWeight({weight}, {bias});
    weight.zero_();
    EXPECT_FALSE(packed.Refresh());
  }
  EXPECT_FALSE(packed.Refresh());
  const at::Tensor x = RandomTensor({2, 30}, 3);
  EXPECT_FALSE(packed.Multiply(x, at::kFloat).eq(bias).all().item<bool>());
}

// bfloat16 takes 12 bits per number, and a little for each panel of 64 outputs. Numbers that are
// spread too widely for that take 16, and writing may turn either kind into the other.
TEST_F(PackedWeightTest, SizeIsThatOfThePlan) {
  constexpr int64_t kOutputs = 65, kInputs = 333, kPadded = 128 * 334;
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) {
    const PackedWeight packed({RandomTensor({kOutputs, kInputs}, 1).to(dtype)});
    EXPECT_EQ(packed.size_bytes(), 128 * kInputs * 4);
    EXPECT_FALSE(packed.is_coded());
  }
  const at::Tensor weight = RandomTensor({kOutputs, kInputs}, 2).to(at::kBFloat16);
  const at::Tensor x = RandomTensor({3, kInputs}, 3).to(at::kBFloat16);
  PackedWeight packed({weight});
  const auto expect_coded = [&] {
    EXPECT_TRUE(packed.is_coded());
    EXPECT_GE(packed.size_bytes(), kPadded * 3 / 2);
    EXPECT_LE(packed.size_bytes(), kPadded * 3 / 2 + 2 * 512);
    ExpectRelative(packed.Multiply(x, at::kFloat), ReferenceProduct(x, weight, {}), kSumTolerance,
                   "coded");
  };
  expect_coded();
  const at::Tensor narrow = weight.clone();
  weight.copy_(weight.to(at::kFloat).mul_(at::exp(RandomTensor({kOutputs, kInputs}, 4).mul_(12))));
  EXPECT_TRUE(packed.Refresh());
  EXPECT_FALSE(packed.is_coded());
  EXPECT_EQ(packed.size_bytes(), kPadded * 2);
  ExpectRelative(packed.Multiply(x, at::kFloat), ReferenceProduct(x, weight, {}), kSumTolerance,
                 "plain");
  weight.copy_(narrow);
  EXPECT_TRUE(packed.Refresh());
  expect_coded();
}

TEST_F(PackedWeightTest, EmptyAndMoved) {
  PackedWeight empty;
  EXPECT_FALSE(empty.defined());
  EXPECT_FALSE(empty.Refresh());
  const at::Tensor x = RandomTensor({2, 30}, 1);
  EXPECT_THROW(empty.Multiply(x, at::kFloat), c10::Error);
  PackedWeight packed({RandomTensor({40, 30}, 2)});
  const at::Tensor expected = packed.Multiply(x, at::kFloat);
  empty = std::move(packed);
  EXPECT_TRUE(at::equal(empty.Multiply(x, at::kFloat), expected));
  EXPECT_EQ(empty.Multiply(x.narrow(0, 0, 0), at::kFloat).sizes(), at::IntArrayRef({0, 40}));
}

TEST_F(PackedWeightTest, WrongTensorsAreRefused) {
  const at::Tensor weight = at::zeros({40, 30});
  ExpectThrows("at least one part", [&] { PackedWeight packed(std::vector<at::Tensor>{}); });
  ExpectThrows("weight is Double", [&] { PackedWeight packed({weight.to(at::kDouble)}); });
  ExpectThrows("part 1 is BFloat16", [&] {
    PackedWeight packed({weight, weight.to(at::kBFloat16)});
  });
  ExpectThrows("part 1 has 40 inputs", [&] {
    PackedWeight packed({weight, weight.t().contiguous()});
  });
  ExpectThrows("part 0 has strides [1, 30]", [&] { PackedWeight packed({weight.t()}); });
  ExpectThrows("part 0 has shape [0, 30]", [&] { PackedWeight packed({weight.narrow(0, 0, 0)}); });
  ExpectThrows("there are 1 biases of 2 parts", [&] {
    PackedWeight packed({weight, weight}, {at::zeros({40})});
  });
  ExpectThrows("bias 0 is Float of shape [30]",
               [&] { PackedWeight packed({weight}, {at::zeros({30})}); });
  const PackedWeight packed({weight});
  ExpectThrows("x is BFloat16", [&] {
    packed.Multiply(at::zeros({2, 30}, at::kBFloat16), at::kFloat);
  });
  ExpectThrows("x has shape [2, 31]", [&] { packed.Multiply(at::zeros({2, 31}), at::kFloat); });
  ExpectThrows("y is BFloat16", [&] { packed.Multiply(at::zeros({2, 30}), at::kBFloat16); });
  ExpectThrows("y has shape [3, 40]", [&] {
    packed.MultiplyInto(at::zeros({2, 30}), at::zeros({3, 40}));
  });
  ExpectThrows("strides [1, 2]", [&] {
    packed.MultiplyInto(at::zeros({2, 30}), at::zeros({40, 2}).t());
  });
}

}  // namespace
}  // namespace taopd::testing
