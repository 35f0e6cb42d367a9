// What a transformer layer does between its matrix products, differentiable: kernels/cpu for
// float32 and bfloat16 on the CPU, kernels/cuda for them on CUDA where that is built, ATen
// operations for everything else (float16, double, other devices). Arithmetic is float32 in all of
// them; where a bfloat16 result is rounded: taopd/layers/layers.h.
//
// The backward passes keep the inputs and one number a row. Results and gradients do not depend on
// the number of threads; a row of a result does not depend on the other rows. Any thread. Tensors
// of one call have one device and floating type; c10::Error names the one that does not.
//
// Shapes: N rows in any number of dimensions, H hidden; T tokens, A heads, D head size (even).
#pragma once

#include <ATen/ATen.h>

namespace taopd {

// x / sqrt(mean(x^2) + eps) * weight over the last dimension, in x's shape.
at::Tensor RmsNorm(const at::Tensor& x_NH, const at::Tensor& weight_H, double eps);

// sum = x + added, and its norm: a residual stream that goes on and its branch into the next block.
struct SumAndNorm {
  at::Tensor sum_NH;
  at::Tensor normed_NH;
};
SumAndNorm AddRmsNorm(const at::Tensor& x_NH, const at::Tensor& added_NH,
                      const at::Tensor& weight_H, double eps);

// Queries or keys, ready for attention: each head normalised where there is a weight, then rotated
// by the cosines and sines of its token, [T, 1, D] without gradient (taopd/layers/layers.h,
// HeadsForward).
at::Tensor NormRotateHeads(const at::Tensor& x_TAD, const at::Tensor& weight_D, double eps,
                           const at::Tensor& cos_T1D, const at::Tensor& sin_T1D);

// silu(gate) up.
at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up);

}  // namespace taopd
