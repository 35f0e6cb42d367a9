// The CUDA toolkit's bfloat16; see cuda_runtime.h next to this file.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
  uint16_t bits = 0;
};

// Rounds to nearest, ties to even; a NaN stays a NaN.
inline __nv_bfloat16 __float2bfloat16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  if (std::isnan(value)) return {0x7fff};
  bits += 0x7fff + ((bits >> 16) & 1);
  return {static_cast<uint16_t>(bits >> 16)};
}

inline float __bfloat162float(__nv_bfloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float wide = 0;
  std::memcpy(&wide, &bits, sizeof(wide));
  return wide;
}
