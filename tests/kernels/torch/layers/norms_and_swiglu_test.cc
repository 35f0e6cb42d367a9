// The layers' functions against compositions of ATen operations in double: results, and gradients
// by autograd.
#include "kernels/torch/layers/norms_and_swiglu.h"

#include <gtest/gtest.h>

#include "kernels/torch/composed/norms_and_swiglu.h"
#include "tests/kernels/torch/expect_throws.h"
#include "tests/kernels/torch/gradient_problem.h"

namespace taopd::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

// The tolerance is relative to the largest number, where roundings are largest. There are float32
// sums of up to 1000 numbers; bfloat16 keeps 8 bits, and the forward passes round up to four times.
double ToleranceOf(at::ScalarType dtype) { return dtype == at::kFloat ? 3e-6 : 0.012; }
// Some gradients are smaller because their terms cancel.
constexpr double kSmallestSize = 0.1;
constexpr double kEps = 1e-5;

at::Tensor Normal(at::IntArrayRef shape, at::ScalarType dtype, double scale = 1, double mean = 0) {
  return (at::randn(shape, at::kFloat) * scale + mean).to(dtype);
}

// Compares the result and the gradients of `ours` on the inputs with those of `oracle` on the same
// inputs in double, and the result without autograd with that under autograd.
void CompareWithDouble(const Tensors& inputs, const DifferentiableFunction& ours,
                       const DifferentiableFunction& oracle, const std::string& what) {
  const at::ScalarType dtype = inputs[0].scalar_type();
  const at::Tensor result = ours(inputs);
  const at::Tensor weights = Normal(result.sizes(), dtype);
  ExpectGradients(ours, oracle, inputs, weights, dtype, ToleranceOf(dtype), what, kSmallestSize);
  EXPECT_TRUE(at::equal(result, Differentiate(ours, inputs, weights, dtype).result)) << what;
}

class LayersTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(1); }
};

TEST_P(LayersTest, RmsNorm) {
  for (const auto& [rows, size] :
       {std::pair{0, 8}, {1, 1}, {3, 5}, {33, 16}, {70, 96}, {5, 1000}}) {
    const Tensors inputs = {Normal({rows, size}, GetParam(), 3),
                            Normal({size}, GetParam(), 0.3, 1)};
    CompareWithDouble(
        inputs, [](const Tensors& t) { return RmsNorm(t[0], t[1], kEps); },
        [](const Tensors& t) { return RmsNormComposed(t[0], t[1], kEps); }, "rms norm");
  }
}

TEST_P(LayersTest, AddRmsNormWithAnyOfItsGradients) {
  for (const std::string used : {"sum", "norm", "both"}) {
    const auto chosen = [&](const at::Tensor& sum, const at::Tensor& normed) {
      return used == "both" ? at::stack({sum, normed}) : used == "sum" ? sum : normed;
    };
    const Tensors inputs = {Normal({2, 20, 33}, GetParam()), Normal({2, 20, 33}, GetParam()),
                            Normal({33}, GetParam(), 0.3, 1)};
    CompareWithDouble(
        inputs,
        [&](const Tensors& t) {
          const SumAndNorm output = AddRmsNorm(t[0], t[1], t[2], kEps);
          return chosen(output.sum_NH, output.normed_NH);
        },
        [&](const Tensors& t) {
          const at::Tensor sum = t[0] + t[1];
          return chosen(sum, RmsNormComposed(sum, t[2], kEps));
        },
        "add, rms norm: " + used);
  }
}

TEST_P(LayersTest, NormRotateHeads) {
  for (const auto& [tokens, heads, size] :
       {std::tuple{0, 2, 4}, {1, 1, 2}, {5, 3, 8}, {40, 2, 32}, {33, 4, 128}}) {
    const at::Tensor angles = at::rand({tokens, 1, size / 2}) * 6;
    const at::Tensor cos = at::cat({angles.cos(), angles.cos()}, 2).to(GetParam());
    const at::Tensor sin = at::cat({-angles.sin(), angles.sin()}, 2).to(GetParam());
    const Tensors inputs = {Normal({tokens, heads, size}, GetParam(), 2),
                            Normal({size}, GetParam(), 0.3, 1)};
    const auto tables = [&](const at::Tensor& like) {
      return std::pair{cos.to(like.scalar_type()), sin.to(like.scalar_type())};
    };
    CompareWithDouble(
        inputs, [&](const Tensors& t) { return NormRotateHeads(t[0], t[1], kEps, cos, sin); },
        [&](const Tensors& t) {
          const auto [cos_d, sin_d] = tables(t[0]);
          return NormRotateHeadsComposed(t[0], t[1], kEps, cos_d, sin_d);
        },
        "norm, rotate");
    CompareWithDouble(
        {inputs[0]},
        [&](const Tensors& t) {
          // As in attention, the gradient has the heads first.
          const at::Tensor out = NormRotateHeads(t[0], at::Tensor(), kEps, cos, sin);
          return out.transpose(0, 1).contiguous();
        },
        [&](const Tensors& t) {
          const auto [cos_d, sin_d] = tables(t[0]);
          return NormRotateHeadsComposed(t[0], at::Tensor(), kEps, cos_d, sin_d).transpose(0, 1);
        },
        "rotate");
  }
}

TEST_P(LayersTest, SwiGlu) {
  for (const int64_t size : {0, 1, 17, 5000}) {
    CompareWithDouble(
        {Normal({2, size}, GetParam(), 4), Normal({2, size}, GetParam())},
        [](const Tensors& t) { return SwiGlu(t[0], t[1]); },
        [](const Tensors& t) { return SwiGluComposed(t[0], t[1]); }, "swiglu");
  }
}

// bfloat16 results are rounded where transformers' are: nearly all bits agree with the composition
// in bfloat16, which rounds in those places (a float32 sum in another order may change one).
TEST_P(LayersTest, RoundsWhereTransformersDoes) {
  const auto expect_same = [](const at::Tensor& ours, const at::Tensor& theirs) {
    if (ours.scalar_type() == at::kFloat) return;
    EXPECT_GE(ours.eq(theirs).to(at::kDouble).mean().item<double>(), 0.999);
  };
  const at::Tensor x = Normal({64, 4, 32}, GetParam(), 2),
                   weight = Normal({32}, GetParam(), 0.3, 1);
  const at::Tensor cos = Normal({64, 1, 32}, GetParam()), sin = Normal({64, 1, 32}, GetParam());
  expect_same(RmsNorm(x, weight, kEps), RmsNormComposed(x, weight, kEps));
  expect_same(NormRotateHeads(x, weight, kEps, cos, sin),
              NormRotateHeadsComposed(x, weight, kEps, cos, sin));
  expect_same(SwiGlu(x, x.flip(0)), SwiGluComposed(x, x.flip(0)));
}

// Neither the threads nor the other rows change a row.
TEST_P(LayersTest, RowsStandAlone) {
  const at::Tensor x = Normal({300, 2, 128}, GetParam()), weight = Normal({128}, GetParam());
  const at::Tensor cos = Normal({300, 1, 128}, GetParam());
  const ThreadsRestored one_thread(1);
  const at::Tensor normed = RmsNorm(x, weight, kEps);
  const at::Tensor rotated = NormRotateHeads(x, weight, kEps, cos, cos);
  at::set_num_threads(4);
  EXPECT_TRUE(at::equal(RmsNorm(x, weight, kEps), normed));
  EXPECT_TRUE(at::equal(NormRotateHeads(x, weight, kEps, cos, cos), rotated));
  EXPECT_TRUE(at::equal(RmsNorm(x.narrow(0, 7, 2), weight, kEps), normed.narrow(0, 7, 2)));
  EXPECT_TRUE(at::equal(
      NormRotateHeads(x.narrow(0, 7, 2), weight, kEps, cos.narrow(0, 7, 2), cos.narrow(0, 7, 2)),
      rotated.narrow(0, 7, 2)));
}

INSTANTIATE_TEST_SUITE_P(Types, LayersTest, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) {
                           return info.param == at::kFloat ? "float32" : "bfloat16";
                         });

TEST(Layers, Float16AndDoubleGoThroughAten) {
  for (const at::ScalarType dtype : {at::kHalf, at::kDouble}) {
    const at::Tensor x = Normal({4, 2, 8}, dtype), weight = Normal({8}, dtype);
    const at::Tensor cos = Normal({4, 1, 8}, dtype);
    EXPECT_TRUE(at::equal(RmsNorm(x, weight, kEps), RmsNormComposed(x, weight, kEps)));
    EXPECT_TRUE(
        at::equal(AddRmsNorm(x, x, weight, kEps).normed_NH, RmsNormComposed(x + x, weight, kEps)));
    EXPECT_TRUE(at::equal(NormRotateHeads(x, weight, kEps, cos, cos),
                          NormRotateHeadsComposed(x, weight, kEps, cos, cos)));
    EXPECT_TRUE(at::equal(SwiGlu(x, x), SwiGluComposed(x, x)));
  }
}

TEST(Layers, WrongTensorsAreRefused) {
  const at::Tensor x = at::zeros({4, 2, 8}), weight = at::zeros({8}), cos = at::zeros({4, 1, 8});
  ExpectThrows("weight has shape [7] but the rows of x have 8",
               [&] { RmsNorm(x, at::zeros({7}), kEps); });
  ExpectThrows("weight is Double", [&] { RmsNorm(x, weight.to(at::kDouble), kEps); });
  ExpectThrows("x has shape []", [&] { RmsNorm(at::zeros({}), weight, kEps); });
  ExpectThrows("added has shape [4, 2, 1]", [&] {
    AddRmsNorm(x, at::zeros({4, 2, 1}), weight, kEps);
  });
  ExpectThrows("added is BFloat16", [&] { AddRmsNorm(x, x.to(at::kBFloat16), weight, kEps); });
  ExpectThrows("must be [tokens, heads, even head size]", [&] {
    NormRotateHeads(at::zeros({4, 2, 7}), at::Tensor(), kEps, cos, cos);
  });
  ExpectThrows("cos has shape [3, 1, 8]", [&] {
    NormRotateHeads(x, weight, kEps, at::zeros({3, 1, 8}), cos);
  });
  ExpectThrows("sin has shape [4, 8]", [&] {
    NormRotateHeads(x, weight, kEps, cos, at::zeros({4, 8}));
  });
  ExpectThrows("up has shape [4, 2, 1]", [&] { SwiGlu(x, at::zeros({4, 2, 1})); });
}

}  // namespace
}  // namespace taopd::testing
