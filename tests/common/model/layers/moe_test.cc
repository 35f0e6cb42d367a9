// The mixture of experts: routing against a plain loop over tokens, grouped products against the
// experts one after the other, and the independence of a token from the others.
#include "common/model/layers/moe.h"

#include <gtest/gtest.h>

#include "tests/common/model/tiny_models.h"

namespace taopd::testing {
namespace {

constexpr int64_t kHidden = 16, kIntermediate = 24, kExperts = 7;

MoeConfig Config(bool normalize) {
  return {.num_experts = kExperts,
          .experts_per_token = 3,
          .intermediate_size = kIntermediate,
          .normalize_gates = normalize,
          .sparse_layers = {true}};
}

MoeWeights RandomWeights(at::ScalarType dtype) {
  UseOneThread();
  at::manual_seed(5);
  const auto random = [&](at::IntArrayRef shape) {
    return at::randn(shape, at::kFloat).mul(0.3).to(dtype);
  };
  MoeWeights weights;
  weights.router_EH = random({kExperts, kHidden});
  for (int64_t e = 0; e < kExperts; ++e) {
    weights.experts.push_back({random({kIntermediate, kHidden}), random({kIntermediate, kHidden}),
                               random({kHidden, kIntermediate})});
  }
  return weights;
}

// Computes one token after the other, in double precision.
at::Tensor PlainLoop(const at::Tensor& x_TH, const MoeWeights& weights, const MoeConfig& config) {
  const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < x_TH.size(0); ++t) {
    const at::Tensor x_H = wide(x_TH[t]);
    const at::Tensor probs_E = at::softmax(at::mv(wide(weights.router_EH), x_H), 0);
    const at::Tensor order_E = at::argsort(probs_E, 0, /*descending=*/true);
    at::Tensor y_H = at::zeros_like(x_H);
    double sum = 0;
    for (int64_t i = 0; i < config.experts_per_token; ++i) {
      const int64_t e = order_E[i].item<int64_t>();
      const ExpertWeights& expert = weights.experts[e];
      const at::Tensor hidden_I =
          at::silu(at::mv(wide(expert.gate_IH), x_H)) * at::mv(wide(expert.up_IH), x_H);
      y_H = y_H + probs_E[e] * at::mv(wide(expert.down_HI), hidden_I);
      sum += probs_E[e].item<double>();
    }
    rows.push_back(config.normalize_gates ? y_H / sum : y_H);
  }
  return at::stack(rows);
}

TEST(Moe, IsTheSumOverTheChosenExperts) {
  const MoeWeights weights = RandomWeights(at::kFloat);
  const at::Tensor x_TH = at::randn({19, kHidden});
  for (const bool normalize : {true, false}) {
    const at::Tensor expected_TH = PlainLoop(x_TH, weights, Config(normalize));
    const c10::InferenceMode inference;
    EXPECT_LE(MaxAbs(MoeBlock(x_TH, weights, Config(normalize)) - expected_TH), 1e-5);
  }
}

TEST(Moe, GroupedProductsAreTheExpertsInTurn) {
  MoeWeights weights = RandomWeights(at::kBFloat16);
  StackExperts(&weights);
  const c10::InferenceMode inference;
  for (const int64_t num_tokens : {1, 2, 37}) {  // with 1, most experts have no token
    const at::Tensor x_TH = at::randn({num_tokens, kHidden}).to(at::kBFloat16);
    const Routing routing = Route(at::linear(x_TH, weights.router_EH), Config(true));
    const at::Tensor in_turn_TH = ExpertsInTurn(x_TH, routing, weights);
    // Both round to bfloat16 after every product, in the same places, but their sums differ in
    // order.
    EXPECT_LE(MaxAbs(ExpertsGrouped(x_TH, routing, weights) - in_turn_TH),
              0.02 * MaxAbs(in_turn_TH));
  }
}

TEST(Moe, GroupedProductsHaveTheGradientsOfTheExpertsInTurn) {
  std::vector<std::vector<at::Tensor>> gradients;
  for (const bool grouped : {false, true}) {
    MoeWeights weights = RandomWeights(at::kBFloat16);
    StackExperts(&weights);
    std::vector<at::Tensor> leaves = {weights.router_EH};
    for (const ExpertWeights& expert : weights.experts) {
      leaves.insert(leaves.end(), {expert.gate_IH, expert.up_IH, expert.down_HI});
    }
    for (at::Tensor& leaf : leaves) leaf.set_requires_grad(true);
    at::manual_seed(9);
    const at::Tensor x_TH = at::randn({41, kHidden}).to(at::kBFloat16).set_requires_grad(true);
    leaves.push_back(x_TH);
    const Routing routing = Route(at::linear(x_TH, weights.router_EH), Config(true));
    const at::Tensor y_TH =
        grouped ? ExpertsGrouped(x_TH, routing, weights) : ExpertsInTurn(x_TH, routing, weights);
    (y_TH * at::randn({41, kHidden}).to(at::kBFloat16)).sum().backward();
    gradients.emplace_back();
    for (const at::Tensor& leaf : leaves) gradients.back().push_back(leaf.grad());
  }
  for (size_t i = 0; i < gradients[0].size(); ++i) {
    ASSERT_TRUE(gradients[0][i].defined() && gradients[1][i].defined()) << i;
    EXPECT_LE(MaxAbs(gradients[0][i] - gradients[1][i]), 0.04 * MaxAbs(gradients[0][i])) << i;
  }
}

TEST(Moe, StackedExpertsAreViewsOfTheStack) {
  MoeWeights weights = RandomWeights(at::kBFloat16);
  const at::Tensor before = weights.experts[3].down_HI;
  StackExperts(&weights);
  EXPECT_TRUE(at::equal(weights.experts[3].down_HI, before));
  weights.experts[3].down_HI.fill_(2.0);
  EXPECT_TRUE(at::equal(weights.down_EHI[3], at::full_like(before, 2.0)));
}

}  // namespace
}  // namespace taopd::testing
