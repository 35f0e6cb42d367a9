#include "kernels/torch/composed/norms_and_swiglu.h"

namespace taopd {

at::Tensor RmsNormComposed(const at::Tensor& x_NH, const at::Tensor& weight_H, double eps) {
  const at::Tensor wide = x_NH.scalar_type() == at::kDouble ? x_NH : x_NH.to(at::kFloat);
  const at::Tensor inverse_rms = wide.square().mean(-1, /*keepdim=*/true).add(eps).rsqrt();
  return (wide * inverse_rms).to(x_NH.scalar_type()).mul(weight_H);
}

at::Tensor NormRotateHeadsComposed(const at::Tensor& x_TAD, const at::Tensor& weight_D, double eps,
                                   const at::Tensor& cos_T1D, const at::Tensor& sin_T1D) {
  const at::Tensor normed = weight_D.defined() ? RmsNormComposed(x_TAD, weight_D, eps) : x_TAD;
  const at::Tensor halves_swapped = normed.roll(normed.size(-1) / 2, -1);
  return at::addcmul(normed * cos_T1D, halves_swapped, sin_T1D);
}

at::Tensor SwiGluComposed(const at::Tensor& gate, const at::Tensor& up) {
  return at::silu(gate).mul(up);
}

}  // namespace taopd
