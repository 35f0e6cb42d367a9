// The mixture-of-experts MLP: a router chooses k of E experts for each token, and the token's
// output is the sum of the experts' SwiGLU outputs, weighted by their gates (Shazeer et al.,
// arXiv:1701.06538). The numbers are those of transformers' Qwen3MoeSparseMoeBlock.
//
// Shapes: T tokens, E experts, k experts of a token, H hidden size, I intermediate size of one
// expert.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "common/model/config/model_config.h"

namespace taopd {

struct ExpertWeights {
  at::Tensor gate_IH, up_IH, down_HI;
};

struct MoeWeights {
  at::Tensor router_EH;  // undefined if the layer has a dense MLP
  std::vector<ExpertWeights> experts;
  // The matrices of all experts, in one storage each; the matrices of `experts` are views of them.
  // Undefined unless StackExperts was called.
  at::Tensor gate_EIH, up_EIH, down_EHI;
};

// The experts of each token and their gates: the k largest values of the softmax of the router's
// logits, computed in float32, scaled to sum to 1 if normalize_gates is set, and converted to the
// model's dtype.
struct Routing {
  at::Tensor gates_Tk;
  at::Tensor experts_Tk;  // int64
};
Routing Route(const at::Tensor& router_logits_TE, const MoeConfig& config);

// Computes the experts one after the other, in the order of their numbers, so that every token's
// sum has a fixed order. expert(e, x_nH) returns the output of expert e, [n, H]. Sums are float32.
// This is the reference for ExpertsGrouped.
using ExpertFunction = std::function<at::Tensor(int64_t e, const at::Tensor& x_nH)>;
at::Tensor ExpertsInTurn(const at::Tensor& x_TH, const Routing& routing, int64_t num_experts,
                         const ExpertFunction& expert);
// Does the same with the experts of `weights`. Differentiable.
at::Tensor ExpertsInTurn(const at::Tensor& x_TH, const Routing& routing, const MoeWeights& weights);

// Computes all experts in three grouped products (at::_grouped_mm). Sums are float32, in the order
// of the gates. REQUIRES: bfloat16, and StackExperts was called.
at::Tensor ExpertsGrouped(const at::Tensor& x_TH, const Routing& routing,
                          const MoeWeights& weights);

// Moves the matrices of all experts into one storage each. The matrices in `weights->experts`
// become views, so that training and export see the same numbers. Call it before they become leaves
// of autograd.
void StackExperts(MoeWeights* weights);
// Returns whether ExpertsGrouped can be used: on CUDA, in bfloat16, with rows of a multiple of 16
// bytes.
bool HasGroupedProducts(const at::Tensor& router_EH, const MoeConfig& config);

// Computes the whole block: Route, then ExpertsGrouped if the weights are stacked, otherwise
// ExpertsInTurn.
at::Tensor MoeBlock(const at::Tensor& x_TH, const MoeWeights& weights, const MoeConfig& config);

}  // namespace taopd
