// What inference on the CPU does with the rows of fused projections. float32 and bfloat16 by
// kernels/cpu/layers/fused_projections.h; other types by the functions of layers.h. No gradients.
// Any thread may call these functions.
//
// Shapes: T rows, N query heads, K key-value heads, D head size, I intermediate size.
#pragma once

#include <ATen/ATen.h>

#include "kernels/torch/layers/layers.h"

namespace taopd {

struct RotatedHeads {
  at::Tensor queries_TND;
  at::Tensor keys_TKD;
};
// The heads of q | k | v, rows of (N + 2 K) D elements, ready for attention: see NormRotateHeads.
// The norms may be undefined.
RotatedHeads NormRotateFused(const at::Tensor& qkv_TC, int64_t num_heads, int64_t num_kv_heads,
                             const at::Tensor& q_norm_D, const at::Tensor& k_norm_D, double eps,
                             const at::Tensor& cos_T1D, const at::Tensor& sin_T1D);

// silu(gate) * up of gate | up, rows of 2 I elements. The result is [T, I].
at::Tensor SwiGluFused(const at::Tensor& gate_up_T2I);

}  // namespace taopd
