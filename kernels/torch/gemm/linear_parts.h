// The forward and backward products of linear layers that share their input, on the CPU, without
// autograd. The differentiable functions of linear.h and gated_mlp.h use them.
//
// Shapes: M rows, K inputs, N outputs of all parts together.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "kernels/torch/gemm/packed_weight.h"
#include "kernels/torch/kernel_choice.h"

namespace taopd {

// Returns whether these functions handle tensors like x: float32 and bfloat16 on the CPU, if the
// process uses the kernels.
inline bool HasCpuProducts(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16) &&
         UsesCustom(KernelKind::kLinear);
}

// Returns y [M, N] = x [M, K] times the weights, plus their biases, in x's type. `packed` contains
// the same weights and biases. If it is null, they are packed for this call, with the same bits as
// result. `biases` is empty or has one entry per weight, which may be undefined.
at::Tensor MultiplyParts(const at::Tensor& x_MK, const std::vector<at::Tensor>& weights,
                         const std::vector<at::Tensor>& biases, const PackedWeight* packed);

// Returns dx = dy W, in x's type.
at::Tensor PartsInputGradient(const at::Tensor& dy_MN, const std::vector<at::Tensor>& weights);

// Computes the gradient of each weight whose `needed` is set. It is either added to the weight's
// gradient target (gradient_target.h), and the entry is undefined, or returned in the weight's
// type.
std::vector<at::Tensor> PartsWeightGradients(const at::Tensor& dy_MN, const at::Tensor& x_MK,
                                             const std::vector<at::Tensor>& weights,
                                             const std::vector<bool>& needed);

}  // namespace taopd
