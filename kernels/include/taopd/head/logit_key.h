// An unsigned number per token that orders tokens as top-k does: larger logits first, and the lower
// id first among equal logits. NaN counts as -inf, and -0 as 0.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "taopd/base/host_device.h"

namespace taopd {

// Returns bits that are larger for a larger logit.
TAOPD_HOST_DEVICE inline uint32_t OrderedBits(float logit) {
  uint32_t bits = 0;
  std::memcpy(&bits, &logit, sizeof(bits));
  if (std::isnan(logit)) bits = 0xff800000u;  // -inf
  if (bits == 0x80000000u) bits = 0;          // -0
  return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

// Returns a key that is larger for a token that comes earlier. Distinct ids have distinct keys.
TAOPD_HOST_DEVICE inline uint64_t LogitKey(float logit, int32_t id) {
  return (static_cast<uint64_t>(OrderedBits(logit)) << 32) |
         (0xffffffffu - static_cast<uint32_t>(id));
}

TAOPD_HOST_DEVICE inline int32_t IdOfKey(uint64_t key) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}

}  // namespace taopd
