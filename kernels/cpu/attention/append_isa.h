// The loops that write keys and values into a head of a block, in the layout of
// taopd/attention/paged_attention.h.
#pragma once

#include <stdint.h>

#include "kernels/cpu/attention/tile_product_isa.h"
#include "taopd/attention/paged_attention.h"
#include "taopd/base/always_inline.h"

namespace taopd::cpu::TAOPD_ISA {
namespace {

// The lane numbers as template arguments, because shuffles take constants.
template <int kNum, int... kLane>
struct Shuffles : Shuffles<kNum - 1, kNum - 1, kLane...> {};
template <int... kLane>
struct Shuffles<0, kLane...> {
  // Exchanges lanes of a pair of rows: the lanes of `first` whose number has bit kBit go to
  // `second`, and the lanes of `second` (numbered from kLanes) whose number lacks it go to `first`.
  template <int kBit>
  static TAOPD_ALWAYS_INLINE void Exchange(Ints* first, Ints* second) {
    const Ints a = *first, b = *second;
    *first =
        __builtin_shufflevector(a, b, ((kLane & kBit) == 0 ? kLane : kLanes + kLane - kBit)...);
    *second =
        __builtin_shufflevector(a, b, ((kLane & kBit) == 0 ? kLane + kBit : kLanes + kLane)...);
  }
};

// Transposes a square matrix of words in log2(kLanes) rounds.
template <int kBit = 1>
TAOPD_ALWAYS_INLINE void Transpose(Ints* rows) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if ((i & kBit) == 0) {
      Shuffles<kLanes>::template Exchange<kBit>(&rows[i], &rows[i + kBit]);
    }
  }
  if constexpr (2 * kBit < kLanes) Transpose<2 * kBit>(rows);
}

// Writes rows of words into the columns [first, first + num_rows) of words [num_words][32].
TAOPD_ALWAYS_INLINE void WriteColumns(const char* rows, int64_t row_bytes, int64_t num_rows,
                                      int64_t num_words, int64_t first, uint32_t* words) {
  int64_t row = 0;
  for (; row + kLanes <= num_rows && num_words % kLanes == 0; row += kLanes) {
    for (int64_t i = 0; i < num_words; i += kLanes) {
      Ints square[kLanes];
#pragma GCC unroll 16
      for (int j = 0; j < kLanes; ++j) Load(&square[j], rows + (row + j) * row_bytes + 4 * i);
      Transpose(square);
#pragma GCC unroll 16
      for (int j = 0; j < kLanes; ++j) {
        Store(words + (i + j) * kBlockTokens + first + row, &square[j]);
      }
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
