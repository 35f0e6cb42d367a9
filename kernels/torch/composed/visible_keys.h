// The keys that a block of queries sees under causal and sliding masks, for ATen's attention.
//
// Shapes: Q queries of the block, L keys.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace taopd {

// Queries of one sequence are computed in blocks of this size, so that masks stay small.
inline constexpr int64_t kQueryBlock = 256;

// Keys [first, first + length), and the mask over them, which is 0 or -inf.
struct VisibleKeys {
  int64_t first = 0, length = 0;
  at::Tensor mask_QL;
};

// Queries are at positions [position, position + num_queries), keys at [0, ...). A sliding window
// of 0 means none. `options` are those of the mask.
VisibleKeys KeysOfBlock(int64_t position, int64_t num_queries, int64_t sliding_window,
                        const at::TensorOptions& options);

}  // namespace taopd
