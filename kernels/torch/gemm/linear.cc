#include "kernels/torch/gemm/linear.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <atomic>
#include <optional>
#include <vector>

#include "kernels/cpu/isa/isa.h"
#include "kernels/torch/gemm/head_gemm_cpu.h"

namespace taopd {
namespace {

std::atomic<int> widens_for_testing{-1};

// Elsewhere than on x86-64 nothing is known, and ATen's own kernels are used.
bool ProcessorMultiplies(at::ScalarType dtype) {
  if (!cpu::kIsX86) return true;
  if (dtype == at::kBFloat16) return BestBfloat16Gemm().multiply != nullptr;
  static const bool has_float16 = cpu::MultipliesFloat16();
  return has_float16;
}

at::Tensor Forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const int64_t K = weight.size(1), N = weight.size(0);
  const at::Tensor rows = x.reshape({-1, K}).contiguous();
  at::Tensor out = at::empty({rows.size(0), N}, x.options().dtype(at::kFloat));
  if (out.numel() > 0) {
    if (weight.scalar_type() == at::kBFloat16) {
      CpuHeadLogits(rows, weight.contiguous(), out);  // a head is a linear layer, too
    } else {
      at::mm_out(out, rows.to(at::kFloat), weight.to(at::kFloat).t());
    }
  }
  if (bias.defined()) out.add_(bias);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = N;
  return out.to(x.scalar_type()).view(shape);
}

class WidenedLinearFunction : public torch::autograd::Function<WidenedLinearFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
    context->save_for_backward({x, weight});
    context->saved_data["has_bias"] = bias.has_value();
    return Forward(x, weight, bias.value_or(at::Tensor()));
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const int64_t K = weight.size(1), N = weight.size(0);
    const at::Tensor dy = gradients[0].reshape({-1, N}).to(at::kFloat);
    at::Tensor dx, dweight, dbias;
    if (context->needs_input_grad(0)) {
      dx = at::mm(dy, weight.to(at::kFloat)).to(x.scalar_type()).view(x.sizes());
    }
    if (context->needs_input_grad(1)) {
      dweight = at::mm(dy.t(), x.reshape({-1, K}).to(at::kFloat)).to(weight.scalar_type());
    }
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2)) {
      dbias = dy.sum(0).to(weight.scalar_type());
    }
    return {dx, dweight, dbias};
  }
};

}  // namespace

bool WidensOnCpu(at::ScalarType dtype) {
  if (dtype != at::kBFloat16 && dtype != at::kHalf) return false;
  const int set = widens_for_testing.load(std::memory_order_relaxed);
  return set >= 0 ? set == 1 : !ProcessorMultiplies(dtype);
}

void SetWidensOnCpuForTesting(bool widens) { widens_for_testing = widens ? 1 : 0; }

at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  RECORD_USER_SCOPE("taopd::linear");
  if (x.is_cpu() && WidensOnCpu(x.scalar_type())) {
    TORCH_CHECK(weight.is_cpu() && weight.scalar_type() == x.scalar_type(), "weight is ",
                weight.scalar_type(), " on ", weight.device(), " but x is ", x.scalar_type(),
                " on ", x.device());
    TORCH_CHECK(weight.dim() == 2, "weight has shape ", weight.sizes(), ", must be [out, in]");
    TORCH_CHECK(x.size(-1) == weight.size(1), "x has ", x.size(-1), " columns, weight ",
                weight.size(1));
    TORCH_CHECK(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)),
                "bias has shape ", bias.sizes(), " but weight has ", weight.size(0), " rows");
    if (at::GradMode::is_enabled()) {
      // Autograd takes an undefined tensor for one without a device.
      return WidenedLinearFunction::apply(
          x, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt);
    }
    return Forward(x, weight, bias);
  }
  if (bias.defined()) return at::linear(x, weight, bias);
  return at::linear(x, weight);
}

}  // namespace taopd
