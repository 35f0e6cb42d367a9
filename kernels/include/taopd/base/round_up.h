// Divisions that round up. The numbers are at least 0, the divisors above 0.
#pragma once

#include <cstdint>

#include "taopd/base/always_inline.h"
#include "taopd/base/host_device.h"

namespace taopd {

TAOPD_HOST_DEVICE TAOPD_ALWAYS_INLINE constexpr int64_t CeilDiv(int64_t number, int64_t divisor) {
  return (number + divisor - 1) / divisor;
}

// Returns the smallest multiple that is not below the number.
TAOPD_HOST_DEVICE TAOPD_ALWAYS_INLINE constexpr int64_t RoundUp(int64_t number, int64_t multiple) {
  return CeilDiv(number, multiple) * multiple;
}

}  // namespace taopd
