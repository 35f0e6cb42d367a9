// Causal attention over paged keys and values, on raw pointers.
//
// The keys and values of one layer are stored in a pool of blocks. A block holds kBlockTokens
// consecutive positions of one sequence, for all key-value heads. A sequence has a block table:
// entry i is the number of the block that holds positions
// [i * kBlockTokens, (i + 1) * kBlockTokens). The caller owns the pool and the tables, and decides
// which sequence uses which block. Several sequences may have the same block in their tables as
// long as it is only read.
//
// One step of a model appends the batch's new keys and values (AppendKeysValues) and then computes
// the attention of the same rows (PagedAttention). A row is one token. A sequence has one row of
// the batch when it decodes, and several when a prompt, or a chunk of one, is prefilled; a batch
// may mix both.
//
// The bytes of an output row depend only on its query, on the keys and values that it sees and on
// the layer's shape. They do not depend on the other rows, on how a prompt is cut into chunks, on
// the numbers of the blocks, or on the threads. To guarantee this, keys are processed in partitions
// of kPartitionTokens absolute positions. Each partition yields a maximum m, a sum l of exp(s - m)
// and a sum of exp(s - m) v, in a fixed order of operations; the partitions are then merged in
// order: "Online normalizer calculation for softmax" (Milakov and Gimelshein, 2018).
//
// Shapes: T rows (tokens of the batch), N query heads, K key-value heads, D head size. Query heads
// [k N/K, (k + 1) N/K) use key-value head k. Sizes and strides count elements.
#pragma once

#include <cstdint>

#include "taopd/base/always_inline.h"
#include "taopd/base/data_type.h"
#include "taopd/base/round_up.h"

namespace taopd {

inline constexpr int64_t kBlockTokens = 32;
inline constexpr int64_t kPartitionTokens = 256;
inline constexpr int64_t kMaxHeadSize = 512;

// Returns the number of blocks that hold num_positions positions of a sequence.
TAOPD_ALWAYS_INLINE constexpr int64_t KvBlocksFor(int64_t num_positions) {
  return CeilDiv(num_positions, kBlockTokens);
}

// A block is [K] heads. A head is its keys followed by its values, in the order in which the
// products read them. Values are cut into slices of kValueColumns columns; the last slice is padded
// to that width, and the contents of the padding do not matter. S = ceil(D / kValueColumns) slices:
//   float32:   keys [D][kBlockTokens]          values [S][kBlockTokens][kValueColumns]
//   bfloat16:  keys [D/2][kBlockTokens][2]     values [S][kBlockTokens/2][kValueColumns][2]
// A bfloat16 pair is two elements of one key, or one column of the values of two positions.
inline constexpr int64_t kValueColumns = 32;

TAOPD_ALWAYS_INLINE constexpr int64_t PaddedValueSize(int64_t head_size) {
  return RoundUp(head_size, kValueColumns);
}
TAOPD_ALWAYS_INLINE constexpr int64_t KeyBytesPerHead(DataType dtype, int64_t head_size) {
  return kBlockTokens * head_size * SizeOf(dtype);
}
TAOPD_ALWAYS_INLINE constexpr int64_t BytesPerHead(DataType dtype, int64_t head_size) {
  return kBlockTokens * (head_size + PaddedValueSize(head_size)) * SizeOf(dtype);
}
// The result is a multiple of 64.
TAOPD_ALWAYS_INLINE constexpr int64_t BytesPerBlock(DataType dtype, int64_t num_kv_heads,
                                                    int64_t head_size) {
  return num_kv_heads * BytesPerHead(dtype, head_size);
}

// The pool of one layer. Its memory need not be initialized, and a block need not be cleared before
// it goes to another sequence: memory that was not appended to is never used. For speed, align the
// pool to 64 bytes.
struct KeyValuePool {
  DataType dtype = DataType::kFloat32;  // also the type of queries, keys, values and outputs
  int64_t num_kv_heads = 0;             // K
  int64_t head_size = 0;                // D: even, at most kMaxHeadSize
  // Block i is the BytesPerBlock bytes at blocks + i * BytesPerBlock.
  void* blocks = nullptr;
};

// Rows [first_row, first_row + num_rows) of the batch are the positions
// [past_len, past_len + num_rows) of one sequence.
struct PagedSequence {
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t past_len = 0;
  const int32_t* block_table = nullptr;
};

// Copies the rows' keys and values into their blocks.
// REQUIRES: a block that is written is in the table of only one sequence of the batch.
struct AppendKeysValues {
  KeyValuePool pool;
  const PagedSequence* sequences = nullptr;
  int64_t num_sequences = 0;
  const void* k_TKD = nullptr;
  int64_t k_row_stride = 0;
  const void* v_TKD = nullptr;
  int64_t v_row_stride = 0;
};

// out = softmax(scale q k^T) v over the positions that a row sees: its own position and those
// before it. If `sliding_window` is not 0, the row sees only the last `sliding_window` of these.
//
// Arithmetic is float32. Where the processor multiplies pairs of bfloat16 (AVX-512 BF16) and the
// pool holds bfloat16, exp(s - m) is rounded to bfloat16 before it is multiplied by v. Processors
// with different instruction sets therefore give different last bits.
//
// A NaN in a query makes its row and head NaN. A NaN in a key or value makes the rows that see it
// NaN.
struct PagedAttention {
  KeyValuePool pool;
  const PagedSequence* sequences = nullptr;
  int64_t num_sequences = 0;
  int64_t num_heads = 0;       // N: a multiple of K
  float scale = 0;             // > 0
  int64_t sliding_window = 0;  // 0: none
  const void* q_TND = nullptr;
  int64_t q_row_stride = 0;
  void* out_TND = nullptr;
  int64_t out_row_stride = 0;
};

}  // namespace taopd
