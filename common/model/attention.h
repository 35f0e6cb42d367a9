// Causal attention of a packed batch, block by block along a plan: never [T, T] over the pack.
#pragma once

#include <ATen/ATen.h>

#include "common/model/attention_plan.h"
#include "common/model/kv_cache.h"

namespace taopd {

// Queries [T, heads, D], keys and values [T, kv heads, D], all rotated; the result is [T, heads *
// D]. With a cache the layer's keys and values are appended to it first, and grad mode must be off.
at::Tensor Attention(const at::Tensor& q_TND, const at::Tensor& k_TND, const at::Tensor& v_TND,
                     const AttentionPlan& plan, KvCache* cache, int64_t layer);

}  // namespace taopd
