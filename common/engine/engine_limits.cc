#include "common/engine/engine_limits.h"

#include <algorithm>

namespace taopd {

absl::StatusOr<KvPoolSize> PoolSizeOf(const Decoder& decoder, const EngineOptions& options,
                                      int64_t max_model_len) {
  if (options.kv_cache_bytes == 0) return KvPoolSize{0, max_model_len};
  const int64_t block_bytes = KvPages::BytesPerBlock(decoder.paged_config(), decoder.dtype(),
                                                     KvPages::LayoutOf(decoder.device()));
  return SizeKvPool(options.kv_cache_bytes, block_bytes, max_model_len, options.max_num_seqs,
                    /*length_was_asked_for=*/options.max_model_len > 0);
}

EngineLimits LimitsOf(const Decoder& decoder, const EngineOptions& options, int64_t max_model_len,
                      const KvPoolSize& pool) {
  const int64_t vocab_size = decoder.config().vocab_size;
  EngineLimits limits;
  limits.vocab_size = vocab_size;
  limits.max_model_len = max_model_len;
  limits.max_generation_len = pool.max_generation_len;
  limits.max_logprobs = static_cast<int32_t>(std::min<int64_t>(options.max_logprobs, vocab_size));
  limits.max_candidates = options.max_candidates;
  limits.max_dense_vocab_size = options.max_dense_vocab_size;
  limits.max_num_seqs = options.max_num_seqs;
  limits.max_num_batched_tokens = options.BatchedTokens(decoder.device().is_cpu());
  limits.max_queued_tokens = options.max_queued_tokens;
  limits.max_client_queued_tokens = static_cast<int64_t>(
      options.max_client_queue_share * static_cast<double>(options.max_queued_tokens));
  limits.can_generate = pool.num_blocks > 0;
  limits.kv_block_tokens = kBlockTokens;
  limits.prefix_caching = options.prefix_caching;
  return limits;
}

}  // namespace taopd
