// The transposition of squares in registers, compiled once per instruction set
// (kernels/cpu/isa/isa.h).
#pragma once

#include <stdint.h>

#include "kernels/cpu/isa/compiled_isa.h"
#include "taopd/base/always_inline.h"

namespace taopd::cpu::TAOPD_ISA {
namespace {

// The lane numbers as template arguments, because shuffles take constants.
template <int kNum, int... kLane>
struct Shuffles : Shuffles<kNum - 1, kNum - 1, kLane...> {};
template <int... kLane>
struct Shuffles<0, kLane...> {
  // Exchanges lanes of a pair of rows: the lanes of `first` whose number has bit kBit go to
  // `second`, and the lanes of `second` (numbered from kLanes) whose number lacks it go to
  // `first`.
  template <int kBit>
  static TAOPD_ALWAYS_INLINE void Exchange(Words* first, Words* second) {
    const Words a = *first, b = *second;
    *first =
        __builtin_shufflevector(a, b, ((kLane & kBit) == 0 ? kLane : kLanes + kLane - kBit)...);
    *second =
        __builtin_shufflevector(a, b, ((kLane & kBit) == 0 ? kLane + kBit : kLanes + kLane)...);
  }
};

// Transposes a square matrix of words in log2(kLanes) rounds.
template <int kBit = 1>
TAOPD_ALWAYS_INLINE void Transpose(Words* rows) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if ((i & kBit) == 0) {
      Shuffles<kLanes>::template Exchange<kBit>(&rows[i], &rows[i + kBit]);
    }
  }
  if constexpr (2 * kBit < kLanes) Transpose<2 * kBit>(rows);
}

// Writes the transposed square of kLanes rows of words. Strides are in bytes.
TAOPD_ALWAYS_INLINE void WriteTransposed(const void* from, int64_t from_stride, void* to,
                                         int64_t to_stride) {
  Words square[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    Load(&square[i], static_cast<const char*>(from) + i * from_stride);
  }
  Transpose(square);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    Store(static_cast<char*>(to) + i * to_stride, &square[i]);
  }
}

}  // namespace
}  // namespace taopd::cpu::TAOPD_ISA
