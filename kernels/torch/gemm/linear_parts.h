// The forward and backward products of linear layers that share their input, on the CPU, without
// autograd. The differentiable functions of linear.h and gated_mlp.h use them.
//
// A part may have an adapter (low_rank.h). `adapters` is empty or has one entry per weight, defined
// or not. The forward product uses the merged weights. The backward products multiply by W and by
// the two small matrices; this differs from the merged weights only by rounding.
//
// Shapes: M rows, K inputs, N outputs of all parts together, S the sum of the adapters' ranks.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "kernels/torch/gemm/lora/low_rank.h"
#include "kernels/torch/gemm/packed_weight.h"
#include "kernels/torch/kernel_choice.h"

namespace taopd {

// Returns whether these functions handle tensors of a device and a type: float32 and bfloat16 on
// the CPU, if the process uses the kernels.
inline bool HasCpuProducts(at::Device device, at::ScalarType type) {
  return device.is_cpu() && (type == at::kFloat || type == at::kBFloat16) &&
         UsesCustom(KernelKind::kLinear);
}
inline bool HasCpuProducts(const at::Tensor& x) {
  return HasCpuProducts(x.device(), x.scalar_type());
}

// Returns y [M, N] = x [M, K] times the weights, plus their biases, in x's type. `packed` contains
// the same weights, adapters and biases. If it is null, they are packed for this call, with the
// same bits as result. `biases` is empty or has one entry per weight, which may be undefined.
at::Tensor MultiplyParts(const at::Tensor& x_MK, const std::vector<at::Tensor>& weights,
                         const std::vector<at::Tensor>& biases, const PackedWeight* packed,
                         const std::vector<LowRankAdapter>& adapters = {});

// Returns scale dy B of all adapters side by side, [M, S] in dy's type; undefined without adapters.
at::Tensor AdapterOutputGradient(const at::Tensor& dy_MN, const std::vector<at::Tensor>& weights,
                                 const std::vector<LowRankAdapter>& adapters);

// Returns dx = dy W, plus d_low A with adapters, in dy's type. d_low_MS is AdapterOutputGradient.
at::Tensor PartsInputGradient(const at::Tensor& dy_MN, const std::vector<at::Tensor>& weights,
                              const std::vector<LowRankAdapter>& adapters = {},
                              const at::Tensor& d_low_MS = at::Tensor());

// Computes the gradients of A and B of each adapter that is defined, in this order. Each is either
// added to the matrix's gradient target, and the entry is undefined, or returned as float32.
// d_low_MS is AdapterOutputGradient.
std::vector<at::Tensor> AdapterGradients(const at::Tensor& dy_MN, const at::Tensor& x_MK,
                                         const std::vector<at::Tensor>& weights,
                                         const std::vector<LowRankAdapter>& adapters,
                                         const at::Tensor& d_low_MS);

// The adapters of a call as autograd's functions pass and save them: the matrices of those that are
// defined, A and B in turn, and one scale per part, 0 without an adapter.
struct SavedAdapters {
  explicit SavedAdapters(const std::vector<LowRankAdapter>& adapters);
  std::vector<at::Tensor> matrices;
  std::vector<double> scales;
};
// Returns the adapters again; the matrices begin at `first` of `saved`.
std::vector<LowRankAdapter> RestoreAdapters(const std::vector<at::Tensor>& saved, size_t first,
                                            const std::vector<double>& scales);

// Computes the gradient of each weight whose `needed` is set. It is either added to the weight's
// gradient target (gradient_target.h), and the entry is undefined, or returned in the weight's
// type.
std::vector<at::Tensor> PartsWeightGradients(const at::Tensor& dy_MN, const at::Tensor& x_MK,
                                             const std::vector<at::Tensor>& weights,
                                             const std::vector<bool>& needed);

}  // namespace taopd
