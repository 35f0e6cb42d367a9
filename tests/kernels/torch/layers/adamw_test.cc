// The update and the norm against ATen's.
#include "kernels/torch/layers/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace taopd {
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
        // Roundings of three float32 updates.
        EXPECT_TRUE(at::allclose(states[i].master, expected[i].master, 1e-6, 1e-6)) << i;
        EXPECT_TRUE(at::allclose(states[i].exp_avg, expected[i].exp_avg, 1e-6, 1e-7)) << i;
        EXPECT_TRUE(at::allclose(states[i].exp_avg_sq, expected[i].exp_avg_sq, 1e-6, 1e-7)) << i;
        EXPECT_TRUE(at::equal(states[i].parameter, states[i].master.to(type))) << i;
      }
    }
  }
}

// Whoever packed or cached a parameter asks for its version.
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
  // Inference tensors count none, and may be written outside of inference mode.
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
    try {
      UpdateAdamW({}, states);
      ADD_FAILURE() << "nothing thrown, expected: " << part;
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  expect_throws("gradient has shape [40, 999]", &AdamWState::gradient, at::zeros({40, 999}));
  expect_throws("gradient is Half", &AdamWState::gradient, at::zeros({40, 1000}, at::kHalf));
  expect_throws("exp_avg is BFloat16", &AdamWState::exp_avg, at::zeros({40, 1000}, at::kBFloat16));
  expect_throws("exp_avg_sq of shape [40, 1000] has strides", &AdamWState::exp_avg_sq,
                at::zeros({1000, 40}).t());
  expect_throws("master has shape", &AdamWState::master, at::zeros({1}));
}

}  // namespace
}  // namespace taopd
