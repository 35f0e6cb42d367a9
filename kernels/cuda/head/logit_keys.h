// Keys by which tokens are ordered as top-k does: larger logits first, and the lower id first among
// equal logits. NaN counts as -inf, and -0 as 0.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace taopd::cuda {

// Returns bits that are larger for a larger logit.
__device__ inline uint32_t OrderedBits(float logit) {
  uint32_t bits = 0;
  std::memcpy(&bits, &logit, sizeof(bits));
  if (std::isnan(logit)) bits = 0xff800000u;  // -inf
  if (bits == 0x80000000u) bits = 0;          // -0
  return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

// Returns a key that is larger for a token that comes earlier. Distinct ids have distinct keys.
__device__ inline uint64_t LogitKey(float logit, int32_t id) {
  return (static_cast<uint64_t>(OrderedBits(logit)) << 32) |
         (0xffffffffu - static_cast<uint32_t>(id));
}

__device__ inline int32_t IdOfKey(uint64_t key) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}

// Sorts keys[num], which are in shared memory, in descending order with a bitonic network.
// REQUIRES: num is a power of two and kThreads is the size of the block. Every thread of the block
// calls it; the keys are sorted when it returns.
template <int kThreads>
__device__ void SortDescending(uint64_t* keys, int32_t num) {
  __syncthreads();
  for (int32_t size = 2; size <= num; size *= 2) {
    for (int32_t step = size / 2; step > 0; step /= 2) {
      for (int32_t pair = static_cast<int32_t>(threadIdx.x); pair < num / 2; pair += kThreads) {
        const int32_t low = 2 * step * (pair / step) + pair % step;
        const int32_t high = low + step;
        const bool descends = (low & size) == 0;
        const uint64_t a = keys[low];
        const uint64_t b = keys[high];
        if ((a < b) == descends) {
          keys[low] = b;
          keys[high] = a;
        }
      }
      __syncthreads();
    }
  }
}

__device__ inline int32_t NextPowerOfTwo(int32_t num) {
  int32_t power = 1;
  while (power < num) power *= 2;
  return power;
}

}  // namespace taopd::cuda
