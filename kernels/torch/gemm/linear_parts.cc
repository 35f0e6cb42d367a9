#include "kernels/torch/gemm/linear_parts.h"

#include "kernels/torch/gemm/gradient_target.h"
#include "kernels/torch/gemm/packed_product.h"

namespace taopd {
namespace {

std::vector<at::Tensor> Contiguous(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> contiguous;
  for (const at::Tensor& tensor : tensors) contiguous.push_back(tensor.contiguous());
  return contiguous;
}

}  // namespace

at::Tensor MultiplyParts(const at::Tensor& x_MK, const std::vector<at::Tensor>& weights,
                         const std::vector<at::Tensor>& biases, const PackedWeight* packed) {
  if (packed != nullptr) return packed->Multiply(x_MK, x_MK.scalar_type());
  return PackedWeight(Contiguous(weights), biases, PackedWeight::Pairs::kPlain)
      .Multiply(x_MK, x_MK.scalar_type());
}

at::Tensor PartsInputGradient(const at::Tensor& dy_MN, const std::vector<at::Tensor>& weights) {
  return InputGradient(dy_MN, Contiguous(weights));
}

std::vector<at::Tensor> PartsWeightGradients(const at::Tensor& dy_MN, const at::Tensor& x_MK,
                                             const std::vector<at::Tensor>& weights,
                                             const std::vector<bool>& needed) {
  std::vector<at::Tensor> gradients(weights.size());
  std::vector<WeightGradient> sums;
  int64_t first_output = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (needed[i]) {
      at::Tensor target = GradientTarget(weights[i]);
      if (!target.defined()) {
        target = gradients[i] =
            at::zeros(weights[i].sizes(), weights[i].options().dtype(at::kFloat));
      }
      sums.push_back({target, first_output});
    }
    first_output += weights[i].size(0);
  }
  AddWeightGradients(dy_MN, x_MK, sums);
  for (size_t i = 0; i < weights.size(); ++i) {
    if (gradients[i].defined()) gradients[i] = gradients[i].to(weights[i].scalar_type());
  }
  return gradients;
}

}  // namespace taopd
