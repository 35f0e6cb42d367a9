// The loops of taopd/attention/paged_attention.h over one head of one block (append), and over one
// tile of queries and one partition of keys (attend).
//
// One source (attention_loops_isa.h) is compiled for several instruction sets
// (kernels/cpu/isa/isa.h), whose results differ in the last bits. There is one table of functions
// for float32 and one for bfloat16. The functions keep no state; any thread may call them.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa/isa.h"
#include "taopd/attention/paged_attention.h"
#include "taopd/base/always_inline.h"
#include "taopd/base/data_type.h"

namespace taopd::cpu {

// Rows of one key-value head: the queries of N/K heads at consecutive positions. Row r is head
// (first + r) % group of the key-value head's `group` query heads, at position
// past_len + (first + r) / group.
struct QueryTile {
  const uint32_t* queries = nullptr;  // [num_rows][query_words], made by pack_query
  int64_t num_rows = 0;
  int64_t first = 0;
  int64_t group = 1;
  int64_t past_len = 0;
  int64_t sliding_window = 0;  // 0: none
  float scale_log2e = 0;       // scale log2(e): exp(scale s) = 2^(scale_log2e s)
  int64_t head_size = 0;
  // The key-value head in block 0, followed by the bytes from one block to the next.
  const char* blocks = nullptr;
  int64_t block_stride_bytes = 0;
  const int32_t* block_table = nullptr;
  // Whether the next call is for the next key-value head: its keys follow this head's values in
  // memory.
  bool next_head_follows = false;
};

// The state of a row, [kStateHeader + PaddedValueSize(D)] floats: the largest score m seen so far,
// the sum of the weights p = exp(scale (s - m)), some padding, and the sums of p v.
inline constexpr int64_t kStateHeader = 16;
TAOPD_ALWAYS_INLINE constexpr int64_t StateSize(int64_t head_size) {
  return kStateHeader + PaddedValueSize(head_size);
}
// Marks, in place of the sum of p, a row that has seen nothing. Its other numbers are not read.
inline constexpr float kNothingSeen = -1.0f;

struct AttentionLoops {
  // Returns the number of words of a packed query: one per number, or one per pair of bfloat16.
  int64_t (*query_words)(int64_t head_size);
  void (*pack_query)(const void* query, int64_t head_size, uint32_t* packed);
  // Writes the keys and values of num_tokens positions into places [first, first + num_tokens) of
  // one head of a block. A stride is the number of elements from one token to the next.
  void (*append)(const void* k, int64_t k_stride, const void* v, int64_t v_stride, int64_t first,
                 int64_t num_tokens, int64_t head_size, void* head);
  // Marks rows as having seen nothing.
  void (*clear)(int64_t num_rows, int64_t head_size, float* states);
  // Adds the positions of a partition that the tile's rows see to the rows' states,
  // [num_rows][StateSize(D)].
  void (*attend)(const QueryTile& tile, int64_t partition, float* states);
  // Merges states of later partitions into `states`, as `attend` does.
  void (*merge)(const float* later, int64_t num_rows, int64_t head_size, float scale_log2e,
                float* states);
  // Writes one row of output, [D]. REQUIRES: the row has seen something.
  void (*finish)(const float* state, int64_t head_size, void* out);
};

TAOPD_DECLARE_ISA_TABLES(AttentionLoops, kFloat32Attention)
TAOPD_DECLARE_PAIR_ISA_TABLES(AttentionLoops, kBfloat16Attention)

// Returns the table of this type for one instruction set. REQUIRES: IsSupported(set).
TAOPD_ALWAYS_INLINE const AttentionLoops& AttentionLoopsOf(InstructionSet set, DataType type) {
  return type == DataType::kFloat32 ? TAOPD_ISA_TABLE(set, kFloat32Attention)
                                    : TAOPD_PAIR_ISA_TABLE(set, kBfloat16Attention);
}

}  // namespace taopd::cpu
