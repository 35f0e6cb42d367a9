// The feed-forward block and the embedding, and their gradients, against compositions in float64.
#include "kernels/torch/layers/gated_mlp.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/torch/layers/embedding.h"
#include "kernels/torch/layers/norms_and_swiglu.h"
#include "tests/kernels/torch/gradient_problem.h"

namespace taopd::testing {
namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};

at::Tensor Mlp(const std::vector<at::Tensor>& v) { return GatedMlp(v[0], {v[1], v[2], v[3]}); }
at::Tensor MlpComposition(const std::vector<at::Tensor>& v) {
  return at::linear(at::silu(at::linear(v[0], v[1])) * at::linear(v[0], v[2]), v[3]);
}
std::vector<at::Tensor> MlpValues(int64_t rows, at::ScalarType dtype) {
  return {RandomTensor({rows, 34}, 1).to(dtype), (RandomTensor({70, 34}, 2) * 0.2).to(dtype),
          (RandomTensor({70, 34}, 3) * 0.2).to(dtype), (RandomTensor({34, 70}, 4) * 0.2).to(dtype)};
}
// bfloat16 rounds gate, up, silu(gate), their product, and the gradients of these.
double ToleranceOf(at::ScalarType dtype) { return dtype == at::kFloat ? 1e-5 : 0.03; }

TEST(GatedMlp, GradientsAreThoseOfFloat64) {
  for (const at::ScalarType dtype : kTypes) {
    for (const int64_t rows : {1, 37, 130}) {
      ExpectGradients(Mlp, MlpComposition, MlpValues(rows, dtype),
                      RandomTensor({rows, 34}, 5).to(dtype), dtype, ToleranceOf(dtype),
                      std::to_string(rows) + " rows, " + c10::toString(dtype));
    }
  }
  // Types without kernels are composed.
  ExpectGradients(Mlp, MlpComposition, MlpValues(3, at::kDouble),
                  RandomTensor({3, 34}, 5).to(at::kDouble), at::kDouble, 1e-12, "float64");
}

TEST(GatedMlp, AddsToGradientTargetsWithAnyThreads) {
  for (const at::ScalarType dtype : kTypes) {
    const at::Tensor weights = RandomTensor({130, 34}, 5).to(dtype);
    ExpectAddsToTargets(Mlp, MlpComposition, MlpValues(130, dtype), weights, dtype, {1, 2, 3},
                        ToleranceOf(dtype));
    ExpectSameBitsWithAnyThreads(Mlp, MlpValues(130, dtype), weights, dtype);
  }
}

// The bits are those of the packed weights' products, with and without gradients, for any number of
// rows.
TEST(GatedMlp, IsTheSameWithPackedWeights) {
  for (const at::ScalarType dtype : kTypes) {
    const std::vector<at::Tensor> v = MlpValues(9, dtype);
    const PackedWeight gate_up({v[1], v[2]}), down({v[3]});
    const at::Tensor packed = GatedMlp(v[0], {v[1], v[2], v[3], &gate_up, &down});
    EXPECT_TRUE(at::equal(packed, Mlp(v)));
    EXPECT_TRUE(at::equal(packed.narrow(0, 4, 1),
                          GatedMlp(v[0].narrow(0, 4, 1), {v[1], v[2], v[3], &gate_up, &down})));
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(packed, Mlp(v)));
  }
}

TEST(GatedMlp, WrongShapesAreRefused) {
  const std::vector<at::Tensor> v = MlpValues(2, at::kFloat);
  EXPECT_ANY_THROW(GatedMlp(v[0], {v[1], v[2].narrow(0, 0, 69), v[3]}));
  EXPECT_ANY_THROW(GatedMlp(v[0], {v[1], v[2], v[3].t()}));
  EXPECT_ANY_THROW(GatedMlp(v[0], {v[1], v[2].to(at::kBFloat16), v[3]}));
  EXPECT_EQ(GatedMlp(v[0].narrow(0, 0, 0), {v[1], v[2], v[3]}).sizes(), at::IntArrayRef({0, 34}));
}

TEST(Embedding, GradientsAreThoseOfATen) {
  const at::Tensor ids = at::tensor({3, 1, 3, 0, 3}, at::kLong);
  for (const at::ScalarType dtype : kTypes) {
    const std::vector<at::Tensor> table = {RandomTensor({5, 130}, 1).to(dtype)};
    const at::Tensor weights = RandomTensor({5, 130}, 2).to(dtype);
    for (const int64_t padding : {-1, 1}) {
      const auto actual = [&](const auto& v) { return Embedding(v[0], ids, padding); };
      const auto expected = [&](const auto& v) { return at::embedding(v[0], ids, padding); };
      ExpectGradients(actual, expected, table, weights, dtype, dtype == at::kFloat ? 1e-6 : 0.01,
                      c10::toString(dtype));
      ExpectAddsToTargets(actual, expected, table, weights, dtype, {0}, 1e-6);
      ExpectSameBitsWithAnyThreads(actual, table, weights, dtype);
    }
  }
}

TEST(Norms, AddToGradientTargets) {
  for (const at::ScalarType dtype : kTypes) {
    const std::vector<at::Tensor> values = {RandomTensor({70, 16}, 1).to(dtype),
                                            RandomTensor({16}, 2).to(dtype)};
    const auto norm = [](const auto& v) { return RmsNorm(v[0], v[1], 1e-6); };
    ExpectAddsToTargets(norm, norm, values, RandomTensor({70, 16}, 3).to(dtype), dtype, {1},
                        dtype == at::kFloat ? 1e-5 : 0.01);
  }
}

}  // namespace
}  // namespace taopd::testing
