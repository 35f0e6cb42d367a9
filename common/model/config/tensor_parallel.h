// The slices of a model for tensor parallel inference (Megatron-LM, Shoeybi et al.,
// arXiv:1909.08053): each of `size` processes holds a slice of every large matrix and computes with
// it, and the partial sums are added up.
//
//   q, k, v          by heads; with more processes than key-value heads, each has a copy of one
//   o                by columns, for the heads of its process
//   gate, up         by rows, and down by columns; the same for every expert
//   embedding, head  by rows: the ids [FirstId(r), FirstId(r + 1))
//   norms, router    whole
//
// This header does not depend on LibTorch. The functions are pure.
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "common/model/config/model_config.h"

namespace taopd {

struct TensorParallel {
  int64_t rank = 0;  // 0 <= rank < size
  int64_t size = 1;

  // Returns the first id of a rank's slice of a vocabulary. Slices differ by at most one id.
  static int64_t FirstIdOf(int64_t rank, int64_t size, int64_t vocab_size) {
    return rank * vocab_size / size;
  }
  int64_t FirstId(int64_t vocab_size) const { return FirstIdOf(rank, size, vocab_size); }
  int64_t NumIds(int64_t vocab_size) const {
    return FirstIdOf(rank + 1, size, vocab_size) - FirstId(vocab_size);
  }
};

// Returns INVALID_ARGUMENT, with the number and the one that it must divide, if the model cannot be
// cut into `size` slices.
absl::Status CheckTensorParallel(const ModelConfig& config, int64_t size);

// Returns the sizes of the slice of one process. REQUIRES: CheckTensorParallel(config,
// parallel.size).
ModelConfig SliceOf(const ModelConfig& config, const TensorParallel& parallel);

}  // namespace taopd
