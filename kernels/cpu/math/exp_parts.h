// The arithmetic of exp and 2^x that loops of several headers share, for one number and for a
// vector of numbers.
#pragma once

#include <cstdint>

#include "taopd/base/always_inline.h"

namespace taopd::cpu {

// Computes n and e with exp(x) = 2^n e for -88 < x <= 0: x = n log 2 + r with |r| <= log(2) / 2,
// and e is the Taylor polynomial of exp(r) of degree 7, whose remainder is below 6e-9 of the value.
// A NaN gives NaNs.
template <typename Float>
TAOPD_ALWAYS_INLINE void ExpParts(const Float* x, Float* n, Float* e) {
  constexpr float kLog2e = 1.44269504088896341f;
  constexpr float kLog2High = 0.693359375f;  // 9 bits: n * kLog2High is exact
  constexpr float kLog2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  *n = (*x * kLog2e + kRound) - kRound;
  const Float r = (*x - *n * kLog2High) - *n * kLog2Low;
  Float sum = r * (1.0f / 5040) + (1.0f / 720);
  sum = sum * r + (1.0f / 120);
  sum = sum * r + (1.0f / 24);
  sum = sum * r + (1.0f / 6);
  sum = sum * r + 0.5f;
  *e = sum * r * r + r + 1.0f;
}

// 2^y for a vector of -127 <= y <= 0, within 2 ulp; inexact below -126, where float32 has no normal
// numbers, and 0 at -127. With the integer n nearest to y and f = y - n, 2^y = 2^n 2^f, and 2^f is
// 1 + f times the polynomial that interpolates (2^f - 1) / f at Chebyshev's nodes of [-1/2, 1/2];
// its error is below 1e-8 of the value. A NaN gives NaN. Bits is the vector of uint32_t of the same
// size.
template <typename Bits, typename Floats>
TAOPD_ALWAYS_INLINE void Exp2OfBounded(const Floats* y, Floats* result) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Floats shifted = *y + kRound;
  const Floats f = *y - (shifted - kRound);
  Floats sum = f * 1.5453163e-4f + 1.33908633e-3f;
  sum = sum * f + 9.61808302e-3f;
  sum = sum * f + 5.55035695e-2f;
  sum = sum * f + 0.240226507f;
  sum = sum * f + 0.693147182f;
  sum = sum * f + 1.0f;
  // The last bits of `shifted` are n; the shift drops the bits before them. The type is unsigned
  // because the bits of a NaN may be the largest int32_t.
  const Bits power = ((Bits)shifted + 127) << 23;
  *result = sum * (Floats)power;
}

// The smallest argument of exp. Below it, where float32 has no normal numbers, exp is taken to be
// 0.
inline constexpr float kSmallestExpArgument = -87.3f;

// exp(x) for x <= 0, within 2 ulp; 0 below kSmallestExpArgument.
TAOPD_ALWAYS_INLINE float ExpOfNonPositive(float x) {
  const float bounded = x < kSmallestExpArgument ? kSmallestExpArgument : x;  // a NaN stays
  float n, e;
  ExpParts(&bounded, &n, &e);
  // The integer of a NaN is unspecified, but its product with anything is NaN.
  const int32_t power = (static_cast<int32_t>(n) + 127) << 23;
  const float result = e * __builtin_bit_cast(float, power);
  return x < kSmallestExpArgument ? 0.0f : result;
}

}  // namespace taopd::cpu
