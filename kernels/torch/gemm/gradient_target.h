// The float32 tensor to which a differentiable function adds the gradient of a weight.
//
// Before the first backward pass, a trainer may give each parameter, even a bfloat16 one, a float32
// gradient that is a view of one flat buffer. A function's backward pass then adds to this view
// directly, in float32, within the product that computes the gradient. For the weight it returns an
// undefined tensor, which autograd ignores. Without such a gradient, the function returns the
// weight's gradient in the weight's type, as ATen's functions do.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

namespace taopd {

// Returns the gradient of `weight` to which a backward pass adds in place, if it is defined,
// float32, contiguous, of weight's shape and on its device. Otherwise, or if the backward pass
// itself is recorded, the result is undefined.
inline at::Tensor GradientTarget(const at::Tensor& weight) {
  if (!weight.defined() || !weight.is_leaf() || c10::GradMode::is_enabled()) return at::Tensor();
  const at::Tensor& gradient = weight.grad();
  const bool fits = gradient.defined() && gradient.scalar_type() == at::kFloat &&
                    gradient.is_contiguous() && gradient.sizes() == weight.sizes() &&
                    gradient.device() == weight.device();
  return fits ? gradient : at::Tensor();
}

// For functions that compute the gradient as a separate tensor: adds it to the target and returns
// an undefined tensor or, if there is no target, returns it in weight's type. `gradient` may be
// undefined.
inline at::Tensor GiveGradient(const at::Tensor& weight, const at::Tensor& gradient) {
  if (!gradient.defined()) return gradient;
  if (const at::Tensor target = GradientTarget(weight); target.defined()) {
    target.add_(gradient);
    return at::Tensor();
  }
  return gradient.to(weight.scalar_type());
}

}  // namespace taopd
