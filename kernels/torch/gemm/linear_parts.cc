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
                         const std::vector<at::Tensor>& biases, const PackedWeight* packed,
                         const std::vector<LowRankAdapter>& adapters) {
  if (packed != nullptr) return packed->Multiply(x_MK, x_MK.scalar_type());
  return PackedWeight(Contiguous(weights), biases, adapters, PackedWeight::Pairs::kPlain)
      .Multiply(x_MK, x_MK.scalar_type());
}

at::Tensor AdapterOutputGradient(const at::Tensor& dy_MN, const std::vector<at::Tensor>& weights,
                                 const std::vector<LowRankAdapter>& adapters) {
  std::vector<at::Tensor> gradients;
  int64_t first_output = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const int64_t N = weights[i].size(0);
    if (i < adapters.size() && adapters[i].defined()) {
      const at::Tensor scaled_b_NR = (adapters[i].b_NR * adapters[i].scale).to(dy_MN.scalar_type());
      gradients.push_back(InputGradient(dy_MN.narrow(1, first_output, N), {scaled_b_NR}));
    }
    first_output += N;
  }
  if (gradients.empty()) return at::Tensor();
  return gradients.size() == 1 ? gradients[0] : at::cat(gradients, 1);
}

at::Tensor PartsInputGradient(const at::Tensor& dy_MN, const std::vector<at::Tensor>& weights,
                              const std::vector<LowRankAdapter>& adapters,
                              const at::Tensor& d_low_MS) {
  if (!d_low_MS.defined()) return InputGradient(dy_MN, Contiguous(weights));
  // One product over the outputs of W and of A, so that the sum is rounded once.
  std::vector<at::Tensor> matrices = Contiguous(weights);
  for (const LowRankAdapter& adapter : adapters) {
    if (adapter.defined()) matrices.push_back(adapter.a_RK.to(dy_MN.scalar_type()));
  }
  return InputGradient(at::cat({dy_MN, d_low_MS}, 1), matrices);
}

std::vector<at::Tensor> AdapterGradients(const at::Tensor& dy_MN, const at::Tensor& x_MK,
                                         const std::vector<at::Tensor>& weights,
                                         const std::vector<LowRankAdapter>& adapters,
                                         const at::Tensor& d_low_MS) {
  if (!d_low_MS.defined()) return {};
  std::vector<at::Tensor> gradients, scaled_a;
  std::vector<WeightGradient> a_gradients, b_gradients;
  const auto target_of = [&](const at::Tensor& matrix) {
    at::Tensor target = GradientTarget(matrix);
    gradients.push_back(target.defined() ? at::Tensor() : at::zeros_like(matrix));
    return target.defined() ? target : gradients.back();
  };
  int64_t first_output = 0, first_low = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (i < adapters.size() && adapters[i].defined()) {
      a_gradients.push_back({target_of(adapters[i].a_RK), first_low});
      b_gradients.push_back({target_of(adapters[i].b_NR), first_output});
      scaled_a.push_back((adapters[i].a_RK * adapters[i].scale).to(x_MK.scalar_type()));
      first_low += adapters[i].a_RK.size(0);
    }
    first_output += weights[i].size(0);
  }
  AddWeightGradients(d_low_MS, x_MK, a_gradients);
  const at::Tensor low_MS = MultiplyParts(x_MK, scaled_a, {}, /*packed=*/nullptr);
  first_low = 0;
  for (size_t i = 0; i < b_gradients.size(); ++i) {
    const int64_t R = scaled_a[i].size(0);
    AddWeightGradients(dy_MN, low_MS.narrow(1, first_low, R), {b_gradients[i]});
    first_low += R;
  }
  return gradients;
}

SavedAdapters::SavedAdapters(const std::vector<LowRankAdapter>& adapters) {
  for (const LowRankAdapter& adapter : adapters) {
    scales.push_back(adapter.defined() ? adapter.scale : 0);
    if (adapter.defined()) matrices.insert(matrices.end(), {adapter.a_RK, adapter.b_NR});
  }
}

std::vector<LowRankAdapter> RestoreAdapters(const std::vector<at::Tensor>& saved, size_t first,
                                            const std::vector<double>& scales) {
  std::vector<LowRankAdapter> adapters;
  for (const double scale : scales) {
    adapters.emplace_back();
    if (scale == 0) continue;
    adapters.back() = {saved[first], saved[first + 1], scale};
    first += 2;
  }
  return adapters;
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
