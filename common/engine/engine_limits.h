// The sizes that a TorchEngine derives from a model and from its options. Both functions are pure.
#pragma once

#include "common/base/status.h"
#include "common/engine/engine.h"
#include "common/memory/kv_pool.h"
#include "common/model/decoder.h"

namespace taopd {

// Returns the pool of an engine whose sequences have at most max_model_len tokens. If the pool has
// no blocks, the engine only scores.
absl::StatusOr<KvPoolSize> PoolSizeOf(const Decoder& decoder, const EngineOptions& options,
                                      int64_t max_model_len);

// REQUIRES: `pool` is what PoolSizeOf returns for the same arguments.
EngineLimits LimitsOf(const Decoder& decoder, const EngineOptions& options, int64_t max_model_len,
                      const KvPoolSize& pool);

}  // namespace taopd
