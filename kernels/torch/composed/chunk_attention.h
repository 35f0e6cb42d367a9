// Attention of a chunk of one sequence over plain pages as LibTorch operations, for tensors of any
// device. Keys and values are gathered from the pages, and LibTorch's FlashAttention does the rest
// where it can: on CUDA for 16-bit types and head sizes up to 256, without a sliding window that
// hides keys. It takes no mask and no keys before the chunk together with a causal one, so the keys
// before the chunk and those of the chunk are two calls, merged by their log-sum-exps. The other
// cases are computed in blocks of queries with a mask.
//
// Shapes: T rows of the batch, N heads, K key-value heads, D head size; B blocks of P =
// kBlockTokens positions.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "taopd/attention/paged_attention.h"

namespace taopd {

// Consecutive rows of one sequence.
struct PagedChunk {
  int64_t first_row = 0, num_rows = 0, past_len = 0;
  at::Tensor blocks;  // int64, on the device: the blocks that hold keys up to the chunk's end
};

// Reads the sequence's block table and keeps no reference to it.
PagedChunk MakePagedChunk(const PagedSequence& sequence, at::Device device);

// Writes the attention of the chunk's rows to its rows of out_TC, [T, N * D]. A sliding_window of 0
// means none. Queries are already rotated, and the rows' keys and values are in the pages.
// Does not wait for the device.
void AttendPagedChunk(const PagedChunk& chunk, const at::Tensor& q_TND, const at::Tensor& keys_BKPD,
                      const at::Tensor& values_BKPD, double scale, int64_t sliding_window,
                      const at::Tensor& out_TC);

}  // namespace taopd
