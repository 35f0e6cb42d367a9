// The operations on the rows of fused projections on the CPU, not differentiable. float32 and
// bfloat16 use kernels/cpu/layers/fused_projections.h; other types use the functions of
// norms_and_swiglu.h. Any thread may call them.
//
// Shapes: T rows, N query heads, K key-value heads, D head size, I intermediate size.
#pragma once

#include <ATen/ATen.h>

#include "kernels/torch/layers/norms_and_swiglu.h"

namespace taopd {

struct RotatedHeads {
  at::Tensor queries_TND;
  at::Tensor keys_TKD;
};
// Writes the heads of q | k | v, rows of (N + 2 K) D elements, prepared for attention (see
// NormRotateHeads), to `heads`, which is contiguous. The norms may be undefined.
void NormRotateFused(const at::Tensor& qkv_TC, const at::Tensor& q_norm_D,
                     const at::Tensor& k_norm_D, double eps, const at::Tensor& cos_T1D,
                     const at::Tensor& sin_T1D, const RotatedHeads& heads);

// Writes silu(gate) * up of gate | up, rows of 2 I elements, to y, which is contiguous.
void SwiGluFused(const at::Tensor& gate_up_T2I, const at::Tensor& y_TI);

// Returns the gradient of gate | up, from d_y and a contiguous gate | up of the same type.
at::Tensor SwiGluFusedBackward(const at::Tensor& gate_up_T2I, const at::Tensor& d_y_TI);

}  // namespace taopd
