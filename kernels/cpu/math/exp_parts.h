// The arithmetic of exp that the loops of row_math_isa.h, layer_loops_isa.h and causal_rows_isa.h
// share, for one number and for a vector of numbers.
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

// exp of smaller arguments, for which float32 has no normal numbers, is taken to be 0.
inline constexpr float kSmallestExpArgument = -87.3f;

// exp(x) for x <= 0, but for rounding, within 2 ulp; 0 below kSmallestExpArgument.
TAOPD_ALWAYS_INLINE float ExpOfNonPositive(float x) {
  const float bounded = x < kSmallestExpArgument ? kSmallestExpArgument : x;  // a NaN stays
  float n, e;
  ExpParts(&bounded, &n, &e);
  // A NaN's integer is unspecified but its product with anything is NaN.
  const int32_t power = (static_cast<int32_t>(n) + 127) << 23;
  const float result = e * __builtin_bit_cast(float, power);
  return x < kSmallestExpArgument ? 0.0f : result;
}

}  // namespace taopd::cpu
