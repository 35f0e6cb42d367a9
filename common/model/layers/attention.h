// Causal attention of a packed batch, block by block as the plan says. A [T, T] matrix over the
// whole pack never exists.
//
// Shapes: T rows of the pack, N heads (key-value heads for keys and values), D head_dim.
#pragma once

#include <ATen/ATen.h>

#include "common/model/layers/attention_plan.h"
#include "common/model/layers/kv_cache.h"

namespace taopd {

struct AttentionLayer {
  int64_t number = 0;          // the layer's index in the cache
  int64_t sliding_window = 0;  // as ModelConfig::SlidingWindow
};

// The result is [T, N * D]. Queries and keys are already rotated. With a cache, the layer's keys
// and values are appended to it first; grad mode must then be off.
at::Tensor Attention(const at::Tensor& q_TND, const at::Tensor& k_TND, const at::Tensor& v_TND,
                     const AttentionLayer& layer, const AttentionPlan& plan, KvCache* cache);

}  // namespace taopd
