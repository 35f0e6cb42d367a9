#include "common/model/layers/kv_cache.h"

#include <c10/core/InferenceMode.h>

#include "common/base/check.h"

namespace taopd {

KvCache::KvCache(const ModelConfig& config, int64_t num_slots, int64_t tokens_per_slot,
                 at::ScalarType dtype, at::Device device)
    : num_slots_(num_slots), tokens_per_slot_(tokens_per_slot) {
  TAOPD_CHECK_GT(num_slots, 0);
  TAOPD_CHECK_GT(tokens_per_slot, 0);
  // Not inference tensors even when made under InferenceMode: those could not be written outside
  // it.
  const c10::InferenceMode normal(false);
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    // Zeros, because attention multiplies masked values by zero, and zero times NaN is NaN.
    keys_.push_back(at::zeros(
        {num_slots, config.num_key_value_heads, tokens_per_slot, config.head_dim}, options));
    values_.push_back(at::zeros_like(keys_.back()));
  }
}

int64_t KvCache::SizeBytes(const ModelConfig& config, int64_t num_slots, int64_t tokens_per_slot,
                           at::ScalarType dtype) {
  return num_slots * tokens_per_slot *
         config.KvBytesPerToken(static_cast<int64_t>(c10::elementSize(dtype)));
}

}  // namespace taopd
