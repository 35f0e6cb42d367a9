// Keys and values of running sequences: one slot a sequence, all slots allocated at start, so that
// memory is planned and not hoped for. Not thread-safe: one engine thread owns a cache.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "common/model/config/model_config.h"

namespace taopd {

class KvCache {
 public:
  // REQUIRES: both > 0. With a multiple of 16 tokens decoding is independent of the batch, bit for
  // bit.
  KvCache(const ModelConfig& config, int64_t num_slots, int64_t tokens_per_slot,
          at::ScalarType dtype, at::Device device);

  int64_t num_slots() const { return num_slots_; }
  int64_t tokens_per_slot() const { return tokens_per_slot_; }
  static int64_t SizeBytes(const ModelConfig& config, int64_t num_slots, int64_t tokens_per_slot,
                           at::ScalarType dtype);

  // [num_slots, num_key_value_heads, tokens_per_slot, head_dim] of a layer.
  at::Tensor& keys(int64_t layer) { return keys_[layer]; }
  at::Tensor& values(int64_t layer) { return values_[layer]; }

 private:
  int64_t num_slots_;
  int64_t tokens_per_slot_;
  std::vector<at::Tensor> keys_;
  std::vector<at::Tensor> values_;
};

}  // namespace taopd
