// The forward and backward products of linear layers that share their input, on the CPU, without
// autograd: what the differentiable functions of linear.h and gated_mlp.h are made of.
//
// Shapes: M rows, K inputs, N outputs of all parts together.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "kernels/torch/gemm/packed_weight.h"

namespace taopd {

// Whether these functions compute with tensors like x: float32 and bfloat16 on the CPU.
inline bool HasCpuProducts(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

// Returns y [M, N] = x [M, K] times the weights, plus their biases, in x's type. `packed` holds the
// same weights and biases, or is null: they are then packed for this call, and the bits are the
// same. `biases` is empty or has one entry per weight, which may be undefined.
at::Tensor MultiplyParts(const at::Tensor& x_MK, const std::vector<at::Tensor>& weights,
                         const std::vector<at::Tensor>& biases, const PackedWeight* packed);

// dx = dy W, in x's type.
at::Tensor PartsInputGradient(const at::Tensor& dy_MN, const std::vector<at::Tensor>& weights);

// The gradient of each weight of which `needed` is set: added to its gradient target
// (gradient_target.h), in which case the entry is undefined, or returned in the weight's type.
std::vector<at::Tensor> PartsWeightGradients(const at::Tensor& dy_MN, const at::Tensor& x_MK,
                                             const std::vector<at::Tensor>& weights,
                                             const std::vector<bool>& needed);

}  // namespace taopd
