// The keys and values of running sequences. Each sequence has one slot. All slots are allocated by
// the constructor, so that a running engine cannot run out of memory for them. Not thread-safe: the
// engine's thread owns the cache.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "common/model/config/model_config.h"

namespace taopd {

class KvCache {
 public:
  // If tokens_per_slot is a multiple of 16, a sequence's decoding does not depend on the rest of
  // the batch, bit for bit. REQUIRES: num_slots > 0 and tokens_per_slot > 0.
  KvCache(const ModelConfig& config, int64_t num_slots, int64_t tokens_per_slot,
          at::ScalarType dtype, at::Device device);

  int64_t num_slots() const { return num_slots_; }
  int64_t tokens_per_slot() const { return tokens_per_slot_; }
  static int64_t SizeBytes(const ModelConfig& config, int64_t num_slots, int64_t tokens_per_slot,
                           at::ScalarType dtype);

  // The keys and values of a layer, [num_slots, num_key_value_heads, tokens_per_slot, head_dim].
  at::Tensor& keys(int64_t layer) { return keys_[layer]; }
  at::Tensor& values(int64_t layer) { return values_[layer]; }

 private:
  int64_t num_slots_;
  int64_t tokens_per_slot_;
  std::vector<at::Tensor> keys_;
  std::vector<at::Tensor> values_;
};

}  // namespace taopd
