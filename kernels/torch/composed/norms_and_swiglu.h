// The functions of kernels/torch/layers/norms_and_swiglu.h as compositions of ATen operations,
// which autograd records. The tests use them as an oracle. Arithmetic is float32, or float64 for
// float64 tensors.
#pragma once

#include <ATen/ATen.h>

namespace taopd {

at::Tensor RmsNormComposed(const at::Tensor& x_NH, const at::Tensor& weight_H, double eps);
at::Tensor NormRotateHeadsComposed(const at::Tensor& x_TAD, const at::Tensor& weight_D, double eps,
                                   const at::Tensor& cos_T1D, const at::Tensor& sin_T1D);
at::Tensor SwiGluComposed(const at::Tensor& gate, const at::Tensor& up);

}  // namespace taopd
