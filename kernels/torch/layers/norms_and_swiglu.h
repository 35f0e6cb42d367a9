// The operations of a transformer layer between its matrix products, differentiable. float32 and
// bfloat16 tensors are computed by kernels/cpu on the CPU and, in builds with TAOPD_CUDA, by
// kernels/cuda on CUDA. All other cases (float16, double, other devices, and processes that do
// without the kernels: kernels/torch/kernel_choice.h) are a composition of ATen operations.
// Arithmetic is float32, or float64 for double; taopd/layers/norms_and_swiglu.h says where bfloat16
// results are rounded.
//
// The backward passes keep the inputs and one number per row. Results and gradients do not depend
// on the number of threads, and a row of a result does not depend on the other rows. All tensors of
// a call have one device and floating type; otherwise the functions throw c10::Error, which names
// the tensor. Any thread may call them.
//
// Shapes: N rows in any number of dimensions, H hidden; T tokens, A heads, D head size (even).
#pragma once

#include <ATen/ATen.h>

namespace taopd {

// x / sqrt(mean(x^2) + eps) * weight over the last dimension, in x's shape.
at::Tensor RmsNorm(const at::Tensor& x_NH, const at::Tensor& weight_H, double eps);

// sum = x + added, and the norm of the sum: the residual stream, and its branch into the next
// block.
struct SumAndNorm {
  at::Tensor sum_NH;
  at::Tensor normed_NH;
};
SumAndNorm AddRmsNorm(const at::Tensor& x_NH, const at::Tensor& added_NH,
                      const at::Tensor& weight_H, double eps);

// Prepares queries or keys for attention: normalizes each head if weight_D is defined, then rotates
// it by the cosines and sines of its token (HeadsForward in taopd/layers/norms_and_swiglu.h). cos
// and sin must not require a gradient.
at::Tensor NormRotateHeads(const at::Tensor& x_TAD, const at::Tensor& weight_D, double eps,
                           const at::Tensor& cos_T1D, const at::Tensor& sin_T1D);

// silu(gate) * up.
at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up);

}  // namespace taopd
