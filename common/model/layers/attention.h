// Causal attention of a pack of whole sequences, block by block as the plan says, differentiable. A
// [T, T] matrix over the whole pack never exists.
//
// Shapes: T rows of the pack, N heads (key-value heads for keys and values), D head_dim.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "common/model/layers/attention_plan.h"

namespace taopd {

// Returns [T, N * D]. Queries and keys are already rotated. sliding_window is that of
// ModelConfig::SlidingWindow.
at::Tensor Attention(const at::Tensor& q_TND, const at::Tensor& k_TND, const at::Tensor& v_TND,
                     int64_t sliding_window, const AttentionPlan& plan);

}  // namespace taopd
