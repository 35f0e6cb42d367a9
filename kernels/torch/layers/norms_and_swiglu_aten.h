// The functions of norms_and_swiglu.h as compositions of ATen operations, which autograd records.
// They serve the types and devices without kernels, and the tests use them as an oracle. Arithmetic
// is float32, or float64 for float64 tensors.
#pragma once

#include "kernels/torch/layers/norms_and_swiglu.h"

namespace taopd {

at::Tensor RmsNormAten(const at::Tensor& x_NH, const at::Tensor& weight_H, double eps);
at::Tensor NormRotateHeadsAten(const at::Tensor& x_TAD, const at::Tensor& weight_D, double eps,
                               const at::Tensor& cos_T1D, const at::Tensor& sin_T1D);
at::Tensor SwiGluAten(const at::Tensor& gate, const at::Tensor& up);

}  // namespace taopd
