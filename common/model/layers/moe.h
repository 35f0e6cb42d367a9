// Mixture-of-experts MLP: a router picks k of E experts for each token, and the token's output is
// the sum of their SwiGLU outputs, weighted by the gates (Shazeer et al., arXiv:1701.06538; as
// transformers' Qwen3MoeSparseMoeBlock).
//
// Shapes: T tokens, E experts, k experts of a token, S = T * k pairs of token and expert, H hidden,
// I intermediate size of one expert.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "common/model/config/model_config.h"

namespace taopd {

struct ExpertWeights {
  at::Tensor gate_IH, up_IH, down_HI;
};

struct MoeWeights {
  at::Tensor router_EH;  // undefined: the layer has a dense MLP
  std::vector<ExpertWeights> experts;
  // All experts' matrices in one storage each, of which those of `experts` are views; only for
  // devices with grouped products (see StackExperts), undefined elsewhere.
  at::Tensor gate_EIH, up_EIH, down_EHI;
};

// Which experts each token goes to, and its gates: softmax of the router's logits in float32, the k
// largest, scaled to sum 1 where normalize_gates; in the model's dtype.
struct Routing {
  at::Tensor gates_Tk;
  at::Tensor experts_Tk;  // int64
};
Routing Route(const at::Tensor& x_TH, const at::Tensor& router_EH, const MoeConfig& config);

// The reference: experts one after the other in the order of their numbers, so that every token's
// sum has a fixed order; sums in float32.
at::Tensor ExpertsInTurn(const at::Tensor& x_TH, const Routing& routing, const MoeWeights& weights);

// All experts in three grouped products (at::_grouped_mm). bfloat16 only; REQUIRES StackExperts.
// Sums in float32, in the order of the gates.
at::Tensor ExpertsGrouped(const at::Tensor& x_TH, const Routing& routing,
                          const MoeWeights& weights);

// Moves the experts' matrices into one storage each. The matrices in `weights->experts` become
// views, so that training and export see the same numbers; call it before they become leaves.
void StackExperts(MoeWeights* weights);
// Whether ExpertsGrouped serves: CUDA, bfloat16, and rows of whole 16 bytes.
bool HasGroupedProducts(const at::Tensor& router_EH, const MoeConfig& config);

// The block: routing, then the grouped products where the weights are stacked.
at::Tensor MoeBlock(const at::Tensor& x_TH, const MoeWeights& weights, const MoeConfig& config);

}  // namespace taopd
