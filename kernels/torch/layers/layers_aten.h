// The functions of layers.h as compositions of ATen operations, recorded by autograd: for the types
// and devices without kernels, and the tests' oracle. Arithmetic is float32, of float64 tensors
// float64.
#pragma once

#include "kernels/torch/layers/layers.h"

namespace taopd {

at::Tensor RmsNormAten(const at::Tensor& x_NH, const at::Tensor& weight_H, double eps);
at::Tensor NormRotateHeadsAten(const at::Tensor& x_TAD, const at::Tensor& weight_D, double eps,
                               const at::Tensor& cos_T1D, const at::Tensor& sin_T1D);
at::Tensor SwiGluAten(const at::Tensor& gate, const at::Tensor& up);

}  // namespace taopd
