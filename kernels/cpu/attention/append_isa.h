// The loops that write keys and values into a head of a block, in the layout of
// taopd/attention/paged_attention.h.
#pragma once

#include <stdint.h>

#include "kernels/cpu/attention/tile_product_isa.h"
#include "kernels/cpu/math/transpose_isa.h"
#include "taopd/attention/paged_attention.h"
#include "taopd/base/always_inline.h"

namespace taopd::cpu::TAOPD_ISA {
namespace {

// Writes rows of words into the columns [first, first + num_rows) of words [num_words][32].
TAOPD_ALWAYS_INLINE void WriteColumns(const char* rows, int64_t row_bytes, int64_t num_rows,
                                      int64_t num_words, int64_t first, uint32_t* words) {
  int64_t row = 0;
  for (; row + kLanes <= num_rows && num_words % kLanes == 0; row += kLanes) {
    for (int64_t i = 0; i < num_words; i += kLanes) {
      WriteTransposed(rows + row * row_bytes + 4 * i, row_bytes,
                      words + i * kBlockTokens + first + row, 4 * kBlockTokens);
    }
  }
  for (; row < num_rows; ++row) {
    for (int64_t i = 0; i < num_words; ++i) {
      __builtin_memcpy(words + i * kBlockTokens + first + row, rows + row * row_bytes + 4 * i, 4);
    }
  }
}

void AppendFloat32(const void* k, int64_t k_stride, const void* v, int64_t v_stride, int64_t first,
                   int64_t num_tokens, int64_t head_size, void* head) {
  auto* const keys = static_cast<uint32_t*>(head);
  WriteColumns(static_cast<const char*>(k), 4 * k_stride, num_tokens, head_size, first, keys);
  char* const values = static_cast<char*>(head) + KeyBytesPerHead(DataType::kFloat32, head_size);
  for (int64_t t = 0; t < num_tokens; ++t) {
    const float* const from = static_cast<const float*>(v) + t * v_stride;
    for (int64_t d = 0; d < head_size; d += kValueColumns) {
      const int64_t num = head_size - d < kValueColumns ? head_size - d : kValueColumns;
      // Skips the slices before this one, then the positions before this one.
      __builtin_memcpy(values + 4 * (d * kBlockTokens + (first + t) * kValueColumns), from + d,
                       4 * num);
    }
  }
}

// Writes one slice of values: pairs[p][c] for the positions [first, first + num_tokens). A pair
// whose second position is not known yet gets a zero there.
TAOPD_ALWAYS_INLINE void WritePairs(const uint16_t* values, int64_t stride, int64_t first,
                                    int64_t num_tokens, int64_t num_columns, uint32_t* pairs) {
  const uint16_t* from = values;
  int64_t token = first;
  const int64_t end = first + num_tokens;
  if (token % 2 != 0) {
    uint32_t* const to = pairs + token / 2 * kValueColumns;
    for (int64_t c = 0; c < num_columns; ++c) {
      to[c] = (to[c] & 0xffff) | static_cast<uint32_t>(from[c]) << 16;
    }
    ++token;
    from += stride;
  }
  for (; token + 1 < end; token += 2, from += 2 * stride) {
    uint32_t* const to = pairs + token / 2 * kValueColumns;
    for (int64_t c = 0; c < num_columns; ++c) {
      to[c] = from[c] | static_cast<uint32_t>(from[stride + c]) << 16;
    }
  }
  if (token < end) {
    uint32_t* const to = pairs + token / 2 * kValueColumns;
    for (int64_t c = 0; c < num_columns; ++c) to[c] = from[c];
  }
}

void AppendBfloat16(const void* k, int64_t k_stride, const void* v, int64_t v_stride, int64_t first,
                    int64_t num_tokens, int64_t head_size, void* head) {
  auto* const keys = static_cast<uint32_t*>(head);
  WriteColumns(static_cast<const char*>(k), 2 * k_stride, num_tokens, head_size / 2, first, keys);
  uint32_t* const values = keys + kBlockTokens * (head_size / 2);
  const auto* const from = static_cast<const uint16_t*>(v);
  for (int64_t d = 0; d < head_size; d += kValueColumns) {
    const int64_t num = head_size - d < kValueColumns ? head_size - d : kValueColumns;
    WritePairs(from + d, v_stride, first, num_tokens, num, values + d * (kBlockTokens / 2));
  }
}

}  // namespace
}  // namespace taopd::cpu::TAOPD_ISA
