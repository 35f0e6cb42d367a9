// Causal attention of a packed batch, block by block along a plan: never [T, T] over the pack.
#pragma once

#include <ATen/ATen.h>

#include "common/model/layers/attention_plan.h"
#include "common/model/layers/kv_cache.h"

namespace taopd {

struct AttentionLayer {
  int64_t number = 0;          // in the cache
  int64_t sliding_window = 0;  // a token sees itself and so many tokens less one before; 0: all
};

// Queries [T, heads, D], keys and values [T, kv heads, D], all rotated; the result is [T, heads *
// D]. With a cache the layer's keys and values are appended to it first, and grad mode must be off.
at::Tensor Attention(const at::Tensor& q_TND, const at::Tensor& k_TND, const at::Tensor& v_TND,
                     const AttentionLayer& layer, const AttentionPlan& plan, KvCache* cache);

}  // namespace taopd
