#include "common/model/rms_norm.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>

namespace taopd {
namespace {

at::Tensor InverseRms(const at::Tensor& x_fp32, double eps) {
  return x_fp32.square().mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();
}

// Own gradient: it keeps x and one number a row where the recorded one keeps four tensors of x's
// size.
class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight_H, double eps) {
    const at::Tensor x_fp32 = x.to(at::kFloat);
    const at::Tensor inverse_rms = InverseRms(x_fp32, eps);
    context->save_for_backward({x, weight_H, inverse_rms});
    return (x_fp32 * inverse_rms).to(x.scalar_type()).mul_(weight_H);
  }

  // With n = x * r, r = 1 / rms and g = dy * weight: dx = r * (g - n * mean(g * n)),
  // dweight = sum over rows of dy * n.
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight_H = saved[1], &inverse_rms = saved[2];
    const at::Tensor dy = gradients[0].to(at::kFloat);
    const at::Tensor normed = x.to(at::kFloat) * inverse_rms;
    const at::Tensor dy_normed = dy * normed;
    const int64_t H = weight_H.size(0);
    at::Tensor dweight_H, dx;
    if (context->needs_input_grad(1)) {
      dweight_H = dy_normed.reshape({-1, H}).sum(0).to(weight_H.scalar_type());
    }
    if (context->needs_input_grad(0)) {
      const at::Tensor weight_fp32 = weight_H.to(at::kFloat);
      const at::Tensor mean = at::matmul(dy_normed, weight_fp32).div_(H).unsqueeze(-1);
      dx = (dy * weight_fp32).addcmul_(normed, mean, -1).mul_(inverse_rms).to(x.scalar_type());
    }
    return {dx, dweight_H, at::Tensor()};
  }
};

}  // namespace

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight_H, double eps) {
  if (at::GradMode::is_enabled() && (x.requires_grad() || weight_H.requires_grad())) {
    return RmsNormFunction::apply(x, weight_H, eps);
  }
  const at::Tensor x_fp32 = x.to(at::kFloat);
  return (x_fp32 * InverseRms(x_fp32, eps)).to(x.scalar_type()).mul_(weight_H);
}

}  // namespace taopd
