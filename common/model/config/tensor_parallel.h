// How a model is cut for tensor parallel inference (Megatron-LM, Shoeybi et al., arXiv:1909.08053):
// each of `size` processes holds a slice of every large matrix, computes with it, and the partial
// sums are added up.
//
//   q, k, v          by heads; where there are fewer key-value heads than processes, each has a copy of one
//   o                by columns, the heads that its process has
//   gate, up         by rows, down by columns; of every expert alike
//   embedding, head  by rows: the ids [FirstId(r), FirstId(r + 1))
//   norms, router    whole
//
// Nothing here knows LibTorch; the functions are pure.
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/model/config/model_config.h"

namespace taopd {

struct TensorParallel {
  int64_t rank = 0;  // 0 <= rank < size
  int64_t size = 1;

  // The first id of a rank's slice of a vocabulary. Slices differ by at most one id.
  static int64_t FirstIdOf(int64_t rank, int64_t size, int64_t vocab_size) {
    return rank * vocab_size / size;
  }
  int64_t FirstId(int64_t vocab_size) const { return FirstIdOf(rank, size, vocab_size); }
  int64_t NumIds(int64_t vocab_size) const {
    return FirstIdOf(rank + 1, size, vocab_size) - FirstId(vocab_size);
  }
  // The first key-value head that this rank has.
  int64_t FirstKeyValueHead(const ModelConfig& config) const {
    return rank * config.num_key_value_heads / size;
  }
};

// Returns INVALID_ARGUMENT, with the number and the one it must divide, if the model cannot be cut
// into `size` slices.
absl::Status CheckTensorParallel(const ModelConfig& config, int64_t size);

// The sizes of what one process holds. REQUIRES: CheckTensorParallel(config, parallel.size).
ModelConfig SliceOf(const ModelConfig& config, const TensorParallel& parallel);

}  // namespace taopd
