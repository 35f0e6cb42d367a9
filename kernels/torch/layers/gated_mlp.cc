#include "kernels/torch/layers/gated_mlp.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "kernels/torch/gemm/linear.h"
#include "kernels/torch/gemm/linear_parts.h"
#include "kernels/torch/layers/fused_projections.h"
#include "kernels/torch/layers/norms_and_swiglu.h"

namespace taopd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor Activated(const at::Tensor& gate_up_T2I) {
  const at::Tensor y_TI =
      at::empty({gate_up_T2I.size(0), gate_up_T2I.size(1) / 2}, gate_up_T2I.options());
  SwiGluFused(gate_up_T2I, y_TI);
  return y_TI;
}

// In the order of the weights.
std::vector<LowRankAdapter> AdaptersOf(const GatedMlpWeights& weights) {
  return {weights.gate_adapter, weights.up_adapter, weights.down_adapter};
}

at::Tensor GateUp(const at::Tensor& x_TH, const GatedMlpWeights& weights) {
  return MultiplyParts(x_TH, {weights.gate_IH, weights.up_IH}, {}, weights.packed_gate_up,
                       {weights.gate_adapter, weights.up_adapter});
}

at::Tensor Down(const at::Tensor& gate_up_T2I, const GatedMlpWeights& weights) {
  return MultiplyParts(Activated(gate_up_T2I), {weights.down_HI}, {}, weights.packed_down,
                       {weights.down_adapter});
}

class GatedMlpFunction : public torch::autograd::Function<GatedMlpFunction> {
 public:
  // `matrices` are those of the adapters.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_TH,
                            const at::Tensor& gate_IH, const at::Tensor& up_IH,
                            const at::Tensor& down_HI, at::TensorList matrices,
                            const GatedMlpWeights& weights) {
    const at::Tensor gate_up_T2I = GateUp(x_TH, weights);
    variable_list saved = {x_TH, gate_IH, up_IH, down_HI, gate_up_T2I};
    saved.insert(saved.end(), matrices.begin(), matrices.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["scales"] = SavedAdapters(AdaptersOf(weights)).scales;
    return Down(gate_up_T2I, weights);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x_TH = saved[0], &down_HI = saved[3], &gate_up_T2I = saved[4];
    const std::vector<at::Tensor> gate_up = {saved[1], saved[2]};
    std::vector<LowRankAdapter> adapters =
        RestoreAdapters(saved, 5, context->saved_data["scales"].toDoubleVector());
    const std::vector<LowRankAdapter> down_adapter = {adapters.back()};
    adapters.pop_back();
    const at::Tensor dy_TH = gradients[0].to(x_TH.scalar_type());
    const at::Tensor d_low_TS = AdapterOutputGradient(dy_TH, {down_HI}, down_adapter);
    at::Tensor d_down;
    variable_list d_down_adapter;
    if (context->needs_input_grad(3) || d_low_TS.defined()) {
      const at::Tensor activated_TI = Activated(gate_up_T2I);
      d_down =
          PartsWeightGradients(dy_TH, activated_TI, {down_HI}, {context->needs_input_grad(3)})[0];
      d_down_adapter = AdapterGradients(dy_TH, activated_TI, {down_HI}, down_adapter, d_low_TS);
    }
    const at::Tensor d_gate_up_T2I = SwiGluFusedBackward(
        gate_up_T2I, PartsInputGradient(dy_TH, {down_HI}, down_adapter, d_low_TS));
    const at::Tensor d_gate_up_low_TS = AdapterOutputGradient(d_gate_up_T2I, gate_up, adapters);
    variable_list result = {at::Tensor()};
    if (context->needs_input_grad(0)) {
      result[0] = PartsInputGradient(d_gate_up_T2I, gate_up, adapters, d_gate_up_low_TS);
    }
    const variable_list d_parts = PartsWeightGradients(
        d_gate_up_T2I, x_TH, gate_up, {context->needs_input_grad(1), context->needs_input_grad(2)});
    const variable_list d_adapters =
        AdapterGradients(d_gate_up_T2I, x_TH, gate_up, adapters, d_gate_up_low_TS);
    for (const variable_list& more : {d_parts, {d_down}, d_adapters, d_down_adapter}) {
      result.insert(result.end(), more.begin(), more.end());
    }
    result.emplace_back();  // weights, which are not a variable
    return result;
  }
};

void CheckMatrix(const char* name, const at::Tensor& matrix, int64_t rows, int64_t columns,
                 const at::Tensor& x) {
  TORCH_CHECK(matrix.sizes() == at::IntArrayRef({rows, columns}) &&
                  matrix.scalar_type() == x.scalar_type() && matrix.device() == x.device(),
              name, " is ", matrix.scalar_type(), " ", matrix.sizes(), " on ", matrix.device(),
              ", must be ", x.scalar_type(), " [", rows, ", ", columns, "] on ", x.device());
}

}  // namespace

at::Tensor GatedMlp(const at::Tensor& x_TH, const GatedMlpWeights& weights) {
  RECORD_USER_SCOPE("taopd::mlp");
  TORCH_CHECK(x_TH.dim() == 2 && weights.gate_IH.dim() == 2, "x has shape ", x_TH.sizes(),
              ", gate has ", weights.gate_IH.sizes());
  const int64_t H = x_TH.size(1), I = weights.gate_IH.size(0);
  CheckMatrix("gate", weights.gate_IH, I, H, x_TH);
  CheckMatrix("up", weights.up_IH, I, H, x_TH);
  CheckMatrix("down", weights.down_HI, H, I, x_TH);
  if (!HasCpuProducts(x_TH) || weights.gate_IH.numel() == 0) {
    const at::Tensor none;
    const at::Tensor gate_TI =
        Linear(x_TH, weights.gate_IH, none, /*packed=*/nullptr, weights.gate_adapter);
    const at::Tensor up_TI =
        Linear(x_TH, weights.up_IH, none, /*packed=*/nullptr, weights.up_adapter);
    return Linear(SwiGlu(gate_TI, up_TI), weights.down_HI, none, /*packed=*/nullptr,
                  weights.down_adapter);
  }
  if (at::GradMode::is_enabled()) {
    const std::vector<at::Tensor> matrices = SavedAdapters(AdaptersOf(weights)).matrices;
    return GatedMlpFunction::apply(x_TH, weights.gate_IH, weights.up_IH, weights.down_HI,
                                   at::TensorList(matrices), weights);
  }
  return Down(GateUp(x_TH, weights), weights);
}

}  // namespace taopd
