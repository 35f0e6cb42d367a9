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

class GatedMlpFunction : public torch::autograd::Function<GatedMlpFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_TH,
                            const at::Tensor& gate_IH, const at::Tensor& up_IH,
                            const at::Tensor& down_HI, const PackedWeight* packed_gate_up,
                            const PackedWeight* packed_down) {
    const at::Tensor gate_up_T2I = MultiplyParts(x_TH, {gate_IH, up_IH}, {}, packed_gate_up);
    context->save_for_backward({x_TH, gate_IH, up_IH, down_HI, gate_up_T2I});
    return MultiplyParts(Activated(gate_up_T2I), {down_HI}, {}, packed_down);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x_TH = saved[0], &down_HI = saved[3], &gate_up_T2I = saved[4];
    const at::Tensor dy_TH = gradients[0].to(x_TH.scalar_type());
    const at::Tensor d_down = PartsWeightGradients(dy_TH, Activated(gate_up_T2I), {down_HI},
                                                   {context->needs_input_grad(3)})[0];
    const at::Tensor d_gate_up_T2I =
        SwiGluFusedBackward(gate_up_T2I, PartsInputGradient(dy_TH, {down_HI}));
    const variable_list d_parts =
        PartsWeightGradients(d_gate_up_T2I, x_TH, {saved[1], saved[2]},
                             {context->needs_input_grad(1), context->needs_input_grad(2)});
    at::Tensor dx_TH;
    if (context->needs_input_grad(0)) {
      dx_TH = PartsInputGradient(d_gate_up_T2I, {saved[1], saved[2]});
    }
    return {dx_TH, d_parts[0], d_parts[1], d_down, at::Tensor(), at::Tensor()};
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
    return Linear(SwiGlu(Linear(x_TH, weights.gate_IH, none), Linear(x_TH, weights.up_IH, none)),
                  weights.down_HI, none);
  }
  if (at::GradMode::is_enabled()) {
    return GatedMlpFunction::apply(x_TH, weights.gate_IH, weights.up_IH, weights.down_HI,
                                   weights.packed_gate_up, weights.packed_down);
  }
  const at::Tensor gate_up_T2I =
      MultiplyParts(x_TH, {weights.gate_IH, weights.up_IH}, {}, weights.packed_gate_up);
  return MultiplyParts(Activated(gate_up_T2I), {weights.down_HI}, {}, weights.packed_down);
}

}  // namespace taopd
