// The size of a KV pool: how many blocks a number of bytes makes, and how long a sequence that
// generates may then be. The plan and the engine for which it is made both use these functions. All
// are pure.
#pragma once

#include <cstdint>

#include "common/base/status.h"
#include "taopd/attention/paged_attention.h"

namespace taopd {

struct KvPoolSize {
  int64_t num_blocks = 0;
  // max_model_len, or what the pool holds if that is less.
  int64_t max_generation_len = 0;
};

// Returns the number of blocks that max_num_seqs sequences of max_model_len can fill, but at most
// what block tables can number (2^31 - 1). A pool is never larger.
int64_t MaxKvBlocks(int64_t max_model_len, int64_t max_num_seqs);

// Returns the pool that `kv_cache_bytes` makes, in whole blocks. If it does not hold one sequence
// of max_model_len, limits the length of sequences that generate or, if `length_was_asked_for`,
// returns INVALID_ARGUMENT. Also returns that if it does not hold one block.
absl::StatusOr<KvPoolSize> SizeKvPool(int64_t kv_cache_bytes, int64_t block_bytes,
                                      int64_t max_model_len, int64_t max_num_seqs,
                                      bool length_was_asked_for);

}  // namespace taopd
