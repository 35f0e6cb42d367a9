// Linear layers with low-rank adapters: their merge, and their gradients against compositions in
// float64.
#include "kernels/torch/gemm/lora/low_rank.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "kernels/torch/gemm/linear.h"
#include "kernels/torch/layers/gated_mlp.h"
#include "tests/kernels/torch/gradient_problem.h"
#include "tests/support/failing_tensors.h"

namespace taopd::testing {
namespace {

constexpr double kScale = 1.75;

// Float32 sums of a few hundred products. With bfloat16, the merged weights are rounded once, and
// so are the gradients of the layer's small values.
double ToleranceOf(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return std::ldexp(1.0, -6);
  return dtype == at::kFloat ? 2e-5 : 1e-7;  // the adapters' gradients are float32
}

struct Sizes {
  int64_t rows, in, out, rank;
};
// Sizes around the panels and the steps of their sums, odd ones, and more rank than inputs.
constexpr Sizes kSizes[] = {{1, 1, 1, 1},    {3, 7, 5, 3},     {33, 64, 130, 16},
                            {7, 301, 37, 2}, {130, 96, 64, 8}, {5, 6, 70, 130}};

LowRankAdapter Adapter(const Sizes& s, uint64_t seed) {
  return {RandomTensor({s.rank, s.in}, seed) * 0.2, RandomTensor({s.out, s.rank}, seed + 1) * 0.2,
          kScale};
}

at::Tensor MergedInDouble(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b) {
  return weight.to(at::kDouble) + kScale * at::mm(b.to(at::kDouble), a.to(at::kDouble));
}

TEST(LowRank, MergesAsFloat64Does) {
  for (const Sizes& s : kSizes) {
    const LowRankAdapter adapter = Adapter(s, 3);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor weight = RandomTensor({s.out, s.in}, 9).to(dtype);
      const at::Tensor merged = MergeAdapter(weight, adapter);
      EXPECT_EQ(merged.scalar_type(), dtype);
      const at::Tensor expected = MergedInDouble(weight, adapter.a_RK, adapter.b_NR);
      // One rounding to the type, or float32 sums of up to 130 products.
      const double tolerance = dtype == at::kFloat ? 2e-6 : std::ldexp(1.0, -8);
      ExpectRelative(merged, expected, tolerance, std::to_string(s.rank));
    }
  }
}

TEST(LowRank, APackedWeightHasTheMergedNumbersAndFollowsTheAdapter) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Sizes s = {9, 33, 150, 5};
    const at::Tensor plain = RandomTensor({40, s.in}, 1).to(dtype);
    const at::Tensor weight = RandomTensor({s.out, s.in}, 2).to(dtype);
    const at::Tensor x = RandomTensor({s.rows, s.in}, 3).to(dtype);
    LowRankAdapter adapter = Adapter(s, 4);
    PackedWeight packed({plain, weight}, {}, {{}, adapter});
    const auto expect_merged = [&] {
      const PackedWeight merged({plain, MergeAdapter(weight, adapter)});
      EXPECT_TRUE(at::equal(packed.Multiply(x, at::kFloat), merged.Multiply(x, at::kFloat)));
    };
    expect_merged();
    EXPECT_FALSE(packed.Refresh());
    adapter.b_NR.mul_(-0.5);
    EXPECT_TRUE(packed.Refresh());
    expect_merged();
    adapter.a_RK.add_(0.25);
    EXPECT_TRUE(packed.Refresh());
    expect_merged();
  }
}

TEST(LowRank, APackedWeightThatFoundNoMemoryIsPackedAgain) {
  const Sizes s = {9, 33, 150, 5};
  const at::Tensor weight = RandomTensor({s.out, s.in}, 2), x = RandomTensor({s.rows, s.in}, 3);
  LowRankAdapter first = Adapter(s, 4), second = Adapter(s, 6);
  PackedWeight packed({weight, weight}, {}, {first, second});
  first.b_NR.mul_(2.0);
  {
    const FailingTensors failing(3);  // between the two adapters
    EXPECT_THROW(packed.Refresh(), std::bad_alloc);
  }
  first.b_NR.mul_(3.0);
  EXPECT_TRUE(packed.Refresh());
  const PackedWeight merged({MergeAdapter(weight, first), MergeAdapter(weight, second)});
  EXPECT_TRUE(at::equal(packed.Multiply(x, at::kFloat), merged.Multiply(x, at::kFloat)));
}

TEST(LowRank, GradientsAreThoseOfFloat64) {
  for (const Sizes& s : kSizes) {
    // float64 has no kernels and is composed, as on other devices.
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      const std::string what = std::to_string(s.rows) + " rows, " + std::to_string(s.in) + " to " +
                               std::to_string(s.out) + ", rank " + std::to_string(s.rank) + ", " +
                               c10::toString(dtype);
      const at::Tensor x = Leaf(RandomTensor({s.rows, s.in}, 1), dtype);
      const at::Tensor weight = RandomTensor({s.out, s.in}, 2).to(dtype);
      const at::Tensor bias = RandomTensor({s.out}, 3).to(dtype);
      const at::Tensor upstream = RandomTensor({s.rows, s.out}, 4).to(dtype);
      LowRankAdapter adapter = Adapter(s, 5);
      adapter.a_RK.set_requires_grad(true);
      adapter.b_NR.set_requires_grad(true);
      const at::Tensor y = Linear(x, weight, bias, nullptr, adapter);
      y.backward(upstream);
      const at::Tensor x64 = Leaf(x, at::kDouble), a64 = Leaf(adapter.a_RK, at::kDouble),
                       b64 = Leaf(adapter.b_NR, at::kDouble);
      const at::Tensor expected = at::linear(x64, weight.to(at::kDouble), bias.to(at::kDouble)) +
                                  at::linear(at::linear(x64, a64), b64) * kScale;
      expected.backward(upstream.to(at::kDouble));
      const double tolerance = ToleranceOf(dtype);
      ExpectRelative(y, expected, tolerance, what);
      ExpectRelative(x.grad(), x64.grad(), tolerance, what + ", x");
      ExpectRelative(adapter.a_RK.grad(), a64.grad(), tolerance, what + ", A");
      ExpectRelative(adapter.b_NR.grad(), b64.grad(), tolerance, what + ", B");
      EXPECT_FALSE(weight.requires_grad());
    }
  }
}

// x, three weights and two adapters, so that a part in the middle has none.
at::Tensor FusedParts(const std::vector<at::Tensor>& v) {
  return FusedLinear(
      v[0], {{v[1], {}, {v[4], v[5], kScale}}, {v[2], {}}, {v[3], {}, {v[6], v[7], -0.5}}});
}
at::Tensor ComposedParts(const std::vector<at::Tensor>& v) {
  return at::cat({at::linear(v[0], v[1]) + at::linear(at::linear(v[0], v[4]), v[5]) * kScale,
                  at::linear(v[0], v[2]),
                  at::linear(v[0], v[3]) + at::linear(at::linear(v[0], v[6]), v[7]) * -0.5},
                 -1);
}
std::vector<at::Tensor> PartsValues(int64_t rows) {
  return {RandomTensor({rows, 21}, 1), RandomTensor({70, 21}, 2), RandomTensor({6, 21}, 3),
          RandomTensor({9, 21}, 4),    RandomTensor({3, 21}, 5),  RandomTensor({70, 3}, 6),
          RandomTensor({2, 21}, 7),    RandomTensor({9, 2}, 8)};
}

TEST(LowRank, FusedPartsHaveTheirOwnAdapters) {
  const at::Tensor weights = RandomTensor({37, 85}, 9);
  ExpectGradients(FusedParts, ComposedParts, PartsValues(37), weights, at::kFloat, 2e-5, "parts");
  ExpectSameBitsWithAnyThreads(FusedParts, PartsValues(37), weights, at::kFloat);
  ExpectAddsToTargets(FusedParts, ComposedParts, PartsValues(37), weights, at::kFloat, {4, 5, 6, 7},
                      2e-5);
}

at::Tensor Mlp(const std::vector<at::Tensor>& v) {
  GatedMlpWeights weights = {v[1], v[2], v[3]};
  weights.gate_adapter = {v[4], v[5], kScale};
  weights.down_adapter = {v[6], v[7], 0.5};
  return GatedMlp(v[0], weights);
}
at::Tensor ComposedMlp(const std::vector<at::Tensor>& v) {
  const at::Tensor gate =
      at::linear(v[0], v[1]) + at::linear(at::linear(v[0], v[4]), v[5]) * kScale;
  const at::Tensor activated = at::silu(gate) * at::linear(v[0], v[2]);
  return at::linear(activated, v[3]) + at::linear(at::linear(activated, v[6]), v[7]) * 0.5;
}

TEST(LowRank, TheFeedForwardBlockHasAdapters) {
  const std::vector<at::Tensor> values = {
      RandomTensor({37, 34}, 1),       RandomTensor({70, 34}, 2) * 0.2,
      RandomTensor({70, 34}, 3) * 0.2, RandomTensor({34, 70}, 4) * 0.2,
      RandomTensor({4, 34}, 5) * 0.2,  RandomTensor({70, 4}, 6) * 0.2,
      RandomTensor({3, 70}, 7) * 0.2,  RandomTensor({34, 3}, 8) * 0.2};
  const at::Tensor weights = RandomTensor({37, 34}, 9);
  ExpectGradients(Mlp, ComposedMlp, values, weights, at::kFloat, 2e-5, "block");
  ExpectSameBitsWithAnyThreads(Mlp, values, weights, at::kFloat);
}

}  // namespace
}  // namespace taopd::testing
