#include "kernels/torch/gemm/linear.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>

#include "kernels/cpu/isa/isa.h"
#include "kernels/torch/gemm/gradient_target.h"
#include "kernels/torch/gemm/linear_parts.h"

namespace taopd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void CheckPart(const at::Tensor& x, const LinearPart& part) {
  const at::Tensor &weight = part.weight, &bias = part.bias;
  TORCH_CHECK(weight.device() == x.device() && weight.scalar_type() == x.scalar_type(),
              "weight is ", weight.scalar_type(), " on ", weight.device(), " but x is ",
              x.scalar_type(), " on ", x.device());
  TORCH_CHECK(weight.dim() == 2, "weight has shape ", weight.sizes(), ", must be [out, in]");
  TORCH_CHECK(x.dim() > 0 && x.size(-1) == weight.size(1), "x has shape ", x.sizes(),
              ", weight has ", weight.size(1), " inputs");
  TORCH_CHECK(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)),
              "bias has shape ", bias.sizes(), " but weight has ", weight.size(0), " rows");
  CheckAdapter(part.adapter, weight);
}

// Views x as a matrix, and turns a matrix back into x's shape.
at::Tensor AsMatrix(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }
at::Tensor WithColumns(const at::Tensor& x, const at::Tensor& y_MN) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = y_MN.size(1);
  return y_MN.view(shape);
}

// The inputs are x, the weights, the biases that are defined, and then the adapters' matrices.
class PartsFunction : public torch::autograd::Function<PartsFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            at::TensorList parameters, const std::vector<at::Tensor>& biases,
                            const std::vector<LowRankAdapter>& adapters,
                            const PackedWeight* packed) {
    const auto num_parts = static_cast<int64_t>(biases.size());
    const std::vector<at::Tensor> weights(parameters.begin(), parameters.begin() + num_parts);
    variable_list saved = {x};
    saved.insert(saved.end(), parameters.begin(), parameters.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["num_parts"] = num_parts;
    std::vector<int64_t> with_bias;
    for (size_t i = 0; i < biases.size(); ++i) {
      if (biases[i].defined()) with_bias.push_back(static_cast<int64_t>(i));
    }
    context->saved_data["with_bias"] = with_bias;
    context->saved_data["scales"] = SavedAdapters(adapters).scales;
    return WithColumns(x, MultiplyParts(AsMatrix(x), weights, biases, packed, adapters));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const int64_t num_parts = context->saved_data["num_parts"].toInt();
    const std::vector<at::Tensor> weights(saved.begin() + 1, saved.begin() + 1 + num_parts);
    const std::vector<int64_t> with_bias = context->saved_data["with_bias"].toIntVector();
    const std::vector<LowRankAdapter> adapters =
        RestoreAdapters(saved, 1 + weights.size() + with_bias.size(),
                        context->saved_data["scales"].toDoubleVector());
    const at::Tensor dy_MN = AsMatrix(gradients[0]).to(x.scalar_type());
    const at::Tensor d_low_MS = AdapterOutputGradient(dy_MN, weights, adapters);
    variable_list result(1);
    if (context->needs_input_grad(0)) {
      result[0] = PartsInputGradient(dy_MN, weights, adapters, d_low_MS).view(x.sizes());
    }
    std::vector<bool> needed;
    for (size_t i = 0; i < weights.size(); ++i) needed.push_back(context->needs_input_grad(1 + i));
    const variable_list d_weights = PartsWeightGradients(dy_MN, AsMatrix(x), weights, needed);
    result.insert(result.end(), d_weights.begin(), d_weights.end());
    for (size_t i = 0; i < with_bias.size(); ++i) {
      const size_t input = 1 + weights.size() + i;
      result.push_back(context->needs_input_grad(input)
                           ? GiveGradient(saved[input], BiasGradient(dy_MN, weights, with_bias[i]))
                           : at::Tensor());
    }
    const variable_list d_adapters =
        AdapterGradients(dy_MN, AsMatrix(x), weights, adapters, d_low_MS);
    result.insert(result.end(), d_adapters.begin(), d_adapters.end());
    result.resize(result.size() + 3);  // biases, adapters and packed, which are not variables
    return result;
  }

 private:
  static at::Tensor BiasGradient(const at::Tensor& dy_MN, const std::vector<at::Tensor>& weights,
                                 int64_t part) {
    int64_t first = 0;
    for (int64_t i = 0; i < part; ++i) first += weights[static_cast<size_t>(i)].size(0);
    return dy_MN.narrow(1, first, weights[static_cast<size_t>(part)].size(0))
        .sum(at::IntArrayRef{0}, /*keepdim=*/false, at::kFloat);
  }
};

// Returns whether this processor has no instructions for x, which is float16.
bool WidensFloat16(const at::Tensor& x) {
  static const bool has_float16 = !cpu::kIsX86 || cpu::MultipliesFloat16();
  return x.is_cpu() && x.scalar_type() == at::kHalf && !has_float16;
}

at::Tensor WithoutAdapter(const at::Tensor& x, const LinearPart& part) {
  const at::Tensor &weight = part.weight, &bias = part.bias;
  if (WidensFloat16(x)) {
    at::Tensor out = at::mm(AsMatrix(x).to(at::kFloat), weight.to(at::kFloat).t());
    if (bias.defined()) out.add_(bias);
    return WithColumns(x, out.to(x.scalar_type()));
  }
  return bias.defined() ? at::linear(x, weight, bias) : at::linear(x, weight);
}

at::Tensor OnePart(const at::Tensor& x, const LinearPart& part) {
  const at::Tensor y = WithoutAdapter(x, part);
  if (!part.adapter.defined()) return y;
  const auto times = [&](const at::Tensor& low, const at::Tensor& matrix) {
    return WithoutAdapter(low, {matrix.to(x.scalar_type()), at::Tensor()});
  };
  return y + times(times(x, part.adapter.a_RK), part.adapter.b_NR) * part.adapter.scale;
}

bool IsEmpty(const LinearPart& part) { return part.weight.numel() == 0; }

}  // namespace

at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  const PackedWeight* packed, const LowRankAdapter& adapter) {
  return FusedLinear(x, {{weight, bias, adapter}}, packed);
}

at::Tensor FusedLinear(const at::Tensor& x, const std::vector<LinearPart>& parts,
                       const PackedWeight* packed) {
  RECORD_USER_SCOPE("taopd::linear");
  TORCH_CHECK(!parts.empty(), "a linear layer needs a weight");
  for (const LinearPart& part : parts) CheckPart(x, part);
  if (!HasCpuProducts(x) || std::any_of(parts.begin(), parts.end(), IsEmpty)) {
    std::vector<at::Tensor> results;
    for (const LinearPart& part : parts) results.push_back(OnePart(x, part));
    return results.size() == 1 ? results[0] : at::cat(results, -1);
  }
  std::vector<at::Tensor> weights, biases;
  std::vector<LowRankAdapter> adapters;
  for (const LinearPart& part : parts) {
    weights.push_back(part.weight);
    biases.push_back(part.bias);
    adapters.push_back(part.adapter);
  }
  if (!at::GradMode::is_enabled()) {
    return WithColumns(x, MultiplyParts(AsMatrix(x), weights, biases, packed, adapters));
  }
  std::vector<at::Tensor> parameters = weights;
  for (const at::Tensor& bias : biases) {
    if (bias.defined()) parameters.push_back(bias);
  }
  const std::vector<at::Tensor> matrices = SavedAdapters(adapters).matrices;
  parameters.insert(parameters.end(), matrices.begin(), matrices.end());
  return PartsFunction::apply(x, at::TensorList(parameters), biases, adapters, packed);
}

}  // namespace taopd
