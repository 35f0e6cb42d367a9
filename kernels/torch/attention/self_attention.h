// The attention of a layer from the rows of its fused projection q | k | v, differentiable, on the
// CPU for float32 and bfloat16: heads are normalized and rotated, and each sequence of the pack
// attends to itself under a causal mask (kernels/cpu/attention/causal/causal_attention.h).
//
// For the backward pass, q | k | v, the result and one number per row and head are kept; queries
// and keys are normalized and rotated again. The gradients of the norms are added to their gradient
// targets (gradient_target.h). Nothing depends on the number of threads, and a row of the result
// depends only on the rows of its own sequence.
//
// Shapes: T rows of the pack, N query heads, K key-value heads, D head size, C = (N + 2 K) D.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace taopd {

struct SelfAttentionOptions {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  double eps = 0;              // epsilon of the norms
  int64_t sliding_window = 0;  // as in ModelConfig::SlidingWindow
  // Sequence i has rows [cu_seqlens[i], cu_seqlens[i + 1]).
  std::vector<int64_t> cu_seqlens;
  // Sequence i continues sequence parents[i] < i, which must not continue another
  // (causal_attention.h). It continues none if parents[i] is -1. If empty, no sequence continues
  // another.
  std::vector<int64_t> parents;
};

// Returns [T, N D]. Either both norms are defined or neither. cos and sin are those of
// NormRotateHeads (kernels/torch/layers/norms_and_swiglu.h). Throws c10::Error if shapes, types or
// devices do not match. Any thread may call it.
at::Tensor SelfAttention(const at::Tensor& qkv_TC, const at::Tensor& q_norm_D,
                         const at::Tensor& k_norm_D, const at::Tensor& cos_T1D,
                         const at::Tensor& sin_T1D, const SelfAttentionOptions& options);

}  // namespace taopd
