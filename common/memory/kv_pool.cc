#include "common/memory/kv_pool.h"

#include <algorithm>
#include <limits>

namespace taopd {

int64_t MaxKvBlocks(int64_t max_model_len, int64_t max_num_seqs) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  const int64_t blocks_of_one = KvBlocksFor(max_model_len);
  // Compares by a quotient, because the product may overflow.
  return max_num_seqs > kMax / std::max<int64_t>(blocks_of_one, 1) ? kMax
                                                                   : max_num_seqs * blocks_of_one;
}

absl::StatusOr<KvPoolSize> SizeKvPool(int64_t kv_cache_bytes, int64_t block_bytes,
                                      int64_t max_model_len, int64_t max_num_seqs,
                                      bool length_was_asked_for) {
  KvPoolSize size;
  size.num_blocks =
      std::min(kv_cache_bytes / block_bytes, MaxKvBlocks(max_model_len, max_num_seqs));
  size.max_generation_len = std::min(max_model_len, size.num_blocks * kBlockTokens);
  const int64_t wanted_blocks = length_was_asked_for ? KvBlocksFor(max_model_len) : 1;
  if (size.num_blocks >= wanted_blocks) return size;
  return InvalidArgument("kv_cache_bytes ", kv_cache_bytes,
                         length_was_asked_for
                             ? Concat(" holds no sequence of max_model_len ", max_model_len)
                             : Concat(" holds no block of ", kBlockTokens, " tokens"),
                         ", which takes ", wanted_blocks * block_bytes,
                         " bytes: give the KV cache more memory, or lower max_model_len");
}

}  // namespace taopd
