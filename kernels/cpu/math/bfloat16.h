// Numbers as kernels store them, float32 or bfloat16, for the loops of the *_isa.h files. bfloat16
// is the upper half of float32.
#pragma once

#include <stdint.h>

#include "taopd/base/always_inline.h"

namespace taopd::cpu {

TAOPD_ALWAYS_INLINE float Widen(float value) { return value; }
TAOPD_ALWAYS_INLINE float Widen(uint16_t bfloat16) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(bfloat16) << 16);
}

// Stores a number in the type of `place`. bfloat16 is rounded to nearest, ties to even; a NaN
// becomes the quiet NaN 0x7fc0.
TAOPD_ALWAYS_INLINE void Put(float value, float* place) { *place = value; }
TAOPD_ALWAYS_INLINE void Put(float value, uint16_t* place) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  *place = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

}  // namespace taopd::cpu
