// Linear layers and their gradients against at::linear in float64, in every type.
#include "kernels/torch/gemm/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "kernels/torch/gemm/packed_product.h"
#include "tests/kernels/cpu/supported_sets.h"
#include "tests/kernels/torch/expect_throws.h"
#include "tests/kernels/torch/gradient_problem.h"

namespace taopd::testing {
namespace {

// Float32 sums of a few thousand products, and one rounding to the 16-bit types, in the backward
// pass a second one.
double ToleranceOf(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return std::ldexp(1.0, -7);
  return dtype == at::kHalf ? std::ldexp(1.0, -9) : 2e-5;
}

at::Tensor Random(at::IntArrayRef shape, at::ScalarType dtype, uint64_t seed) {
  return RandomTensor(shape, seed).to(dtype);
}

class LinearTest : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(LinearTest, IsThatOfFloat64) {
  struct Sizes {
    int64_t rows, in, out;
  };
  uint64_t seed = 0;
  // Sizes around the panels and tiles, odd numbers of inputs and rows, one row, and none.
  for (const Sizes& s :
       {Sizes{1, 1, 1}, {3, 7, 5}, {33, 64, 1100}, {7, 301, 37}, {130, 96, 160}, {0, 16, 8}}) {
    const std::vector<at::Tensor> values = {Random({s.rows, s.in}, GetParam(), ++seed),
                                            Random({s.out, s.in}, GetParam(), ++seed),
                                            Random({s.out}, GetParam(), ++seed)};
    const at::Tensor weights = Random({s.rows, s.out}, GetParam(), ++seed);
    if (s.rows == 0) {
      const auto none = Differentiate([](const auto& v) { return Linear(v[0], v[1], v[2]); },
                                      values, weights, GetParam());
      EXPECT_EQ(none.result.sizes(), at::IntArrayRef({0, s.out}));
      EXPECT_EQ(none.gradients[1].abs().sum().item<double>(), 0);
      continue;
    }
    ExpectGradients(
        [](const auto& v) { return Linear(v[0], v[1], v[2]); },
        [](const auto& v) { return at::linear(v[0], v[1], v[2]); }, values, weights, GetParam(),
        ToleranceOf(GetParam()),
        std::to_string(s.rows) + " rows, " + std::to_string(s.in) + " to " + std::to_string(s.out));
  }
}

TEST_P(LinearTest, TakesAnyShapeAndStride) {
  const std::vector<at::Tensor> values = {Random({2, 3, 16}, GetParam(), 1),
                                          Random({16, 8}, GetParam(), 2)};
  const at::Tensor weights = Random({3, 2, 8}, GetParam(), 3).transpose(0, 2).contiguous();
  ExpectGradients(
      [](const auto& v) {
        return Linear(v[0].transpose(0, 1), v[1].t(), at::Tensor()).transpose(0, 2);
      },
      [](const auto& v) { return at::linear(v[0].transpose(0, 1), v[1].t()).transpose(0, 2); },
      values, weights, GetParam(), ToleranceOf(GetParam()), "strided");
}

TEST_P(LinearTest, WrongShapesAreRefusedByName) {
  const at::Tensor x = Random({2, 16}, GetParam(), 1), weight = Random({8, 16}, GetParam(), 2);
  const auto expect_refused = [&](const at::Tensor& w, const at::Tensor& b, const char* part) {
    ExpectThrows(part, [&] { Linear(x, w, b); });
  };
  expect_refused(Random({8, 16, 2}, GetParam(), 1), {}, "weight has shape [8, 16, 2]");
  expect_refused(weight, Random({1}, GetParam(), 1), "bias has shape [1] but weight has 8 rows");
  expect_refused(weight, Random({2, 8}, GetParam(), 1), "bias has shape [2, 8]");
  expect_refused(Random({8, 15}, GetParam(), 1), {}, "weight has 15 inputs");
  expect_refused(weight.to(at::kDouble), {}, "weight is Double");
  EXPECT_ANY_THROW(Linear(at::zeros({}, GetParam()), weight, {}));
}

TEST_P(LinearTest, FusedIsEachPartAlone) {
  const at::Tensor x = Random({40, 50}, GetParam(), 1);
  std::vector<LinearPart> parts = {{Random({70, 50}, GetParam(), 2), {}},
                                   {Random({5, 50}, GetParam(), 3), Random({5}, GetParam(), 4)},
                                   {Random({90, 50}, GetParam(), 5), {}}};
  std::vector<at::Tensor> alone;
  for (const LinearPart& part : parts) alone.push_back(Linear(x, part.weight, part.bias));
  EXPECT_TRUE(at::equal(FusedLinear(x, parts), at::cat(alone, 1)));
  const PackedWeight packed({parts[0].weight, parts[1].weight, parts[2].weight},
                            {{}, parts[1].bias, {}});
  EXPECT_TRUE(at::equal(FusedLinear(x, parts, &packed), at::cat(alone, 1)));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, LinearTest,
                         ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

at::Tensor ThreeParts(const std::vector<at::Tensor>& v) {
  return FusedLinear(v[0], {{v[1], {}}, {v[2], v[4]}, {v[3], {}}});
}
std::vector<at::Tensor> ValuesOfThreeParts(at::ScalarType dtype) {
  return {Random({300, 66}, dtype, 1), Random({70, 66}, dtype, 2), Random({5, 66}, dtype, 3),
          Random({90, 66}, dtype, 4), Random({5}, dtype, 5)};
}

at::Tensor ThreePartsByAten(const std::vector<at::Tensor>& v) {
  return at::cat({at::linear(v[0], v[1]), at::linear(v[0], v[2], v[4]), at::linear(v[0], v[3])}, 1);
}

TEST(FusedLinear, GradientsAreThoseOfFloat64WithAnyThreads) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const std::vector<at::Tensor> values = ValuesOfThreeParts(dtype);
    const at::Tensor weights = Random({300, 165}, dtype, 6);
    ExpectGradients(ThreeParts, ThreePartsByAten, values, weights, dtype, ToleranceOf(dtype),
                    c10::toString(dtype));
    ExpectAddsToTargets(ThreeParts, ThreePartsByAten, values, weights, dtype, {1, 2, 3, 4}, 2e-5);
    ExpectSameBitsWithAnyThreads(ThreeParts, values, weights, dtype);
  }
}

// One part needs no gradient, and in another call the input needs none.
TEST(FusedLinear, ComputesWhatIsNeeded) {
  const at::Tensor x = Random({4, 8}, at::kFloat, 1), frozen = Random({3, 8}, at::kFloat, 2);
  const at::Tensor weight = Leaf(Random({5, 8}, at::kFloat, 3), at::kFloat);
  FusedLinear(x, {{frozen, {}}, {weight, {}}}).sum().backward();
  ExpectRelative(weight.grad(), x.sum(0, true).expand({5, 8}).to(at::kDouble), 1e-5, "weight");
  EXPECT_FALSE(frozen.grad().defined());
}

// The three products of a layer, with every instruction set.
TEST(PackedProduct, InstructionSetsAgreeWithFloat64) {
  for (const cpu::PackedGemm* gemm : SupportedPackedGemms()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor x = Random({141, 75}, dtype, 1), w1 = Random({67, 75}, dtype, 2),
                       w2 = Random({30, 75}, dtype, 3), dy = Random({141, 97}, dtype, 4);
      const std::string what = std::string(NameOf(gemm)) + ", " + c10::toString(dtype);
      const at::Tensor weight = at::cat({w1, w2}).to(at::kDouble);
      ExpectRelative(InputGradient(dy, {w1, w2}, *gemm), at::mm(dy.to(at::kDouble), weight),
                     ToleranceOf(dtype), what);
      const at::Tensor d1 = at::ones({67, 75}), d2 = at::ones({30, 75});
      AddWeightGradients(dy, x, {{d1, 0}, {d2, 67}}, *gemm);
      // Sums stay in float32: nothing is rounded to dtype.
      ExpectRelative(at::cat({d1, d2}) - 1, at::mm(dy.to(at::kDouble).t(), x.to(at::kDouble)), 2e-5,
                     what);
    }
  }
}

}  // namespace
}  // namespace taopd::testing
