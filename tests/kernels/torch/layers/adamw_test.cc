// The update and the norm against ATen's.
#include "kernels/torch/layers/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/torch/expect_throws.h"

namespace taopd::testing {
namespace {

std::vector<AdamWState> MakeStates(at::ScalarType parameter_type, at::ScalarType gradient_type) {
  at::manual_seed(2);
  std::vector<AdamWState> states;
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{40, 1000}, {7}, {0, 3}, {300, 128}, {1}}) {
    AdamWState state;
    state.parameter = at::randn(shape).to(parameter_type);
    state.master = parameter_type == at::kFloat ? state.parameter : state.parameter.to(at::kFloat);
    state.gradient = at::randn(shape).to(gradient_type);
    state.exp_avg = at::randn(shape) * 0.1;
    state.exp_avg_sq = at::rand(shape);
    state.weight_decay = shape.size() >= 2 ? 0.1 : 0;
    states.push_back(state);
  }
  return states;
}

TEST(FusedAdamW, EqualsAten) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const at::ScalarType gradient_type : {at::kFloat, at::kBFloat16}) {
      const std::vector<AdamWState> states = MakeStates(type, gradient_type);
      std::vector<AdamWState> expected;
      for (const AdamWState& state : states) {
        expected.push_back({state.parameter.clone(), state.gradient, state.master.clone(),
                            state.exp_avg.clone(), state.exp_avg_sq.clone(), state.weight_decay});
      }
      const at::Tensor untouched = at::randn({3});
      std::vector<AdamWState> all = states;
      all.push_back({untouched, at::Tensor(), untouched, at::Tensor(), at::Tensor(), 0});
      const at::Tensor before = untouched.clone();
      for (int64_t step = 1; step <= 3; ++step) {
        UpdateAdamW({0.01, 0.9, 0.95, 1e-8, step, 0.3}, all);
        for (AdamWState& state : expected) {
          const at::Tensor gradient = state.gradient.to(at::kFloat).mul(0.3);
          at::_fused_adamw_({state.master}, {gradient}, {state.exp_avg}, {state.exp_avg_sq}, {},
                            {at::full({}, static_cast<double>(step))}, 0.01, 0.9, 0.95,
                            state.weight_decay, 1e-8, false, false);
        }
      }
      EXPECT_TRUE(at::equal(untouched, before));
      for (size_t i = 0; i < states.size(); ++i) {
        // The roundings of three float32 updates.
        EXPECT_TRUE(at::allclose(states[i].master, expected[i].master, 1e-6, 1e-6)) << i;
        EXPECT_TRUE(at::allclose(states[i].exp_avg, expected[i].exp_avg, 1e-6, 1e-7)) << i;
        EXPECT_TRUE(at::allclose(states[i].exp_avg_sq, expected[i].exp_avg_sq, 1e-6, 1e-7)) << i;
        EXPECT_TRUE(at::equal(states[i].parameter, states[i].master.to(type))) << i;
      }
    }
  }
}

// An update with bfloat16 moments is one with float32 moments whose results are rounded up or down;
// on average over many steps and elements, the rounding is zero.
TEST(FusedAdamW, Bfloat16MomentsAreRoundedWithoutBias) {
  constexpr int64_t kSize = 50'000;
  at::manual_seed(3);
  const at::Tensor gradient = at::randn({kSize}), start = at::randn({kSize});
  const at::Tensor m = at::randn({kSize}).mul(0.1).to(at::kBFloat16),
                   v = at::rand({kSize}).add(0.01).to(at::kBFloat16);
  AdamWState exact{start.clone(), gradient, at::Tensor(), m.to(at::kFloat), v.to(at::kFloat), 0};
  exact.master = exact.parameter;
  UpdateAdamW({0.01, 0.9, 0.999, 1e-8, 7, 1.0}, {exact});
  for (const bool first_moment : {true, false}) {
    double bias = 0, spread = 0;
    constexpr int kSteps = 20;
    at::Tensor mean = at::zeros({kSize}, at::kDouble);
    for (int64_t number = 0; number < kSteps; ++number) {
      AdamWState state{start.clone(), gradient, at::Tensor(), m.clone(), v.clone(), 0};
      state.master = state.parameter;
      state.number = number;
      UpdateAdamW({0.01, 0.9, 0.999, 1e-8, 7, 1.0}, {state});
      // The parameter uses the moments before they are rounded.
      ASSERT_TRUE(at::equal(state.parameter, exact.parameter));
      const at::Tensor rounded = first_moment ? state.exp_avg : state.exp_avg_sq;
      const at::Tensor before = first_moment ? exact.exp_avg : exact.exp_avg_sq;
      const at::Tensor error =
          (rounded.to(at::kDouble) - before.to(at::kDouble)) / before.to(at::kDouble).abs();
      ASSERT_LT(error.abs().max().item<double>(), 1.0 / 128);  // one step of bfloat16
      mean.add_(error);
      bias += error.mean().item<double>() / kSteps;
      spread += error.square().mean().item<double>() / kSteps;
    }
    // The spread of the rounding, and five standard errors of its mean.
    EXPECT_GT(std::sqrt(spread), 1e-3);
    EXPECT_LT(std::abs(bias), 5 * std::sqrt(spread / (kSteps * kSize)));
    // The errors of a single element differ from stream to stream, so their mean shrinks.
    EXPECT_LT(mean.div(kSteps).square().mean().item<double>(), 1.2 * spread / kSteps);
  }
}

// An update of weights without a master is one of a float32 copy of them whose result is rounded up
// or down; on average over many steps and elements, the rounding is zero.
TEST(FusedAdamW, Bfloat16WeightsAreRoundedWithoutBias) {
  constexpr int64_t kSize = 50'000;
  constexpr int kSteps = 20;
  at::manual_seed(6);
  const at::Tensor start = at::randn({kSize}).to(at::kBFloat16), gradient = at::randn({kSize}),
                   m = at::randn({kSize}).mul(0.1), v = at::rand({kSize}).add(0.01);
  for (const at::ScalarType moments : {at::kFloat, at::kBFloat16}) {
    const AdamWSettings settings = {1e-4, 0.9, 0.999, 1e-8, 7, 1.0};
    AdamWState exact{start.to(at::kFloat),       gradient, at::Tensor(), m.to(moments, false, true),
                     v.to(moments, false, true), 0.1};
    exact.master = exact.parameter;
    UpdateAdamW(settings, {exact});
    const at::Tensor change = (exact.master - start.to(at::kFloat)).to(at::kDouble);
    at::Tensor mean = at::zeros({kSize}, at::kDouble);
    for (int64_t number = 0; number < kSteps; ++number) {
      AdamWState state{start.clone(),
                       gradient,
                       at::Tensor(),
                       m.to(moments, false, true),
                       v.to(moments, false, true),
                       0.1};
      state.number = number;
      UpdateAdamW(settings, {state});
      mean.add_(state.parameter.to(at::kDouble).sub_(start.to(at::kDouble)), 1.0 / kSteps);
      // The moments are those of an update with a master.
      if (moments == at::kFloat) {
        ASSERT_TRUE(at::equal(state.exp_avg, exact.exp_avg));
      }
      // At most one step of bfloat16, up or down.
      const at::Tensor error = state.parameter.to(at::kDouble) - exact.master.to(at::kDouble);
      ASSERT_LT((error / exact.master.abs()).abs().max().item<double>(), 1.0 / 128);
    }
    // Updates of 1e-4 move few weights, by a last place of about 1e-2; their sum is that of the
    // exact changes. The bound is five standard errors: an element's rounding has at most the
    // variance of its change times its place.
    const at::Tensor place = start.to(at::kDouble).abs() / 128;
    const double variance = (change.abs() * place).sum().item<double>() / kSteps;
    const at::Tensor sign = change.sign();
    EXPECT_NEAR((mean * sign).sum().item<double>(), change.abs().sum().item<double>(),
                5 * std::sqrt(variance));
    EXPECT_GT(change.abs().sum().item<double>(), 8 * std::sqrt(variance));
  }
}

// The bits of a weight depend only on the step, the parameter and the element's place in it.
TEST(FusedAdamW, Bfloat16WeightsInPiecesHaveTheSameBits) {
  constexpr int64_t kSize = 3 * 32768 + 77, kCut = 40'000;
  at::manual_seed(7);
  const auto make = [&](int64_t number) {
    at::manual_seed(8);
    AdamWState state{at::randn({kSize}).to(at::kBFloat16),
                     at::randn({kSize}),
                     at::Tensor(),
                     at::zeros({kSize}, at::kBFloat16),
                     at::zeros({kSize}, at::kBFloat16),
                     0};
    state.number = number;
    return state;
  };
  const AdamWState whole = make(5), other = make(6);
  std::vector<AdamWState> pieces;
  const AdamWState cut = make(5);
  for (const auto& [first, size] : {std::pair{kCut, kSize - kCut}, {int64_t{0}, kCut}}) {
    AdamWState piece{
        cut.parameter.narrow(0, first, size), cut.gradient.narrow(0, first, size),   at::Tensor(),
        cut.exp_avg.narrow(0, first, size),   cut.exp_avg_sq.narrow(0, first, size), 0};
    piece.number = 5;
    piece.first_element = first;
    pieces.push_back(piece);
  }
  for (int64_t step = 1; step <= 2; ++step) {
    const AdamWSettings settings = {1e-5, 0.9, 0.999, 1e-8, step, 1.0};
    UpdateAdamW(settings, {whole});
    UpdateAdamW(settings, pieces);
    UpdateAdamW(settings, {other});
  }
  EXPECT_TRUE(at::equal(cut.parameter, whole.parameter));
  EXPECT_TRUE(at::equal(cut.exp_avg_sq, whole.exp_avg_sq));
  EXPECT_FALSE(at::equal(other.parameter, whole.parameter));
}

// Small second moments decay although a step changes them by less than half of their last place.
TEST(FusedAdamW, Bfloat16MomentsDecay) {
  constexpr int64_t kSize = 4096, kSteps = 1000;
  AdamWState state{at::zeros({kSize}),
                   at::zeros({kSize}),
                   at::Tensor(),
                   at::ones({kSize}, at::kBFloat16),
                   at::ones({kSize}, at::kBFloat16),
                   0};
  state.master = state.parameter;
  for (int64_t step = 1; step <= kSteps; ++step) {
    UpdateAdamW({0.0, 0.999, 0.999, 1e-8, step, 1.0}, {state});
  }
  const double expected = std::pow(0.999, kSteps);
  // The spread of the walk is about 0.06 for one element, so 0.001 for the mean.
  EXPECT_NEAR(state.exp_avg.to(at::kDouble).mean().item<double>(), expected, 5e-3);
  EXPECT_NEAR(state.exp_avg_sq.to(at::kDouble).mean().item<double>(), expected, 5e-3);
}

// Code that has packed or cached a parameter checks its version.
TEST(FusedAdamW, CountsVersionsOfWhatItWrites) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    std::vector<AdamWState> states = MakeStates(type, type);
    states.resize(2);
    states[1].gradient = at::Tensor();
    const at::Tensor view = states[0].parameter.view({-1});
    const auto before = view._version();
    const auto untouched = states[1].parameter._version();
    const auto gradient = states[0].gradient._version();
    UpdateAdamW({}, states);
    EXPECT_GT(view._version(), before);
    EXPECT_EQ(states[1].parameter._version(), untouched);
    EXPECT_EQ(states[0].gradient._version(), gradient);
  }
  // The same holds without a master.
  std::vector<AdamWState> alone = MakeStates(at::kBFloat16, at::kFloat);
  for (AdamWState& state : alone) state.master = at::Tensor();
  const auto before = alone[0].parameter._version();
  UpdateAdamW({}, alone);
  EXPECT_GT(alone[0].parameter._version(), before);
  // Inference tensors have no version counter, and may be written outside of inference mode.
  std::vector<AdamWState> states;
  {
    const c10::InferenceMode inference;
    states = MakeStates(at::kBFloat16, at::kBFloat16);
  }
  UpdateAdamW({}, states);
}

TEST(SumOfSquares, EqualsAten) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    std::vector<at::Tensor> gradients;
    double squares = 0;
    for (const AdamWState& state : MakeStates(at::kFloat, type)) {
      gradients.push_back(state.gradient);
      squares += state.gradient.to(at::kDouble).square().sum().item<double>();
    }
    EXPECT_NEAR(SumOfSquares(gradients), squares, 1e-7 * squares);
    gradients[3][2][5] = std::numeric_limits<float>::infinity();
    EXPECT_EQ(SumOfSquares(gradients), std::numeric_limits<double>::infinity());
    gradients[0][1][5] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(SumOfSquares(gradients)));
  }
  EXPECT_EQ(SumOfSquares({}), 0);
}

TEST(FusedAdamW, WrongTensorsAreRefused) {
  const auto expect_throws = [](const std::string& part, at::Tensor AdamWState::*member,
                                const at::Tensor& wrong) {
    std::vector<AdamWState> states = MakeStates(at::kFloat, at::kFloat);
    states[0].*member = wrong;
    ExpectThrows(part, [&] { UpdateAdamW({}, states); });
  };
  expect_throws("gradient has shape [40, 999]", &AdamWState::gradient, at::zeros({40, 999}));
  expect_throws("gradient is Half", &AdamWState::gradient, at::zeros({40, 1000}, at::kHalf));
  expect_throws("exp_avg is BFloat16 but exp_avg_sq is Float", &AdamWState::exp_avg,
                at::zeros({40, 1000}, at::kBFloat16));
  expect_throws("exp_avg_sq of shape [40, 1000] has strides", &AdamWState::exp_avg_sq,
                at::zeros({1000, 40}).t());
  expect_throws("master has shape", &AdamWState::master, at::zeros({1}));
  expect_throws("a parameter of type Float has no master", &AdamWState::master, at::Tensor());
}

}  // namespace
}  // namespace taopd::testing
