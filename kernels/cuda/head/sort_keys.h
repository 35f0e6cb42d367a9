// A sort of keys in shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace taopd::cuda {

// Sorts keys[num] in descending order with a bitonic network. REQUIRES: num is a power of two and
// kThreads is the size of the block. Every thread of the block calls it; the keys are sorted when
// it returns.
template <int kThreads>
__device__ void SortFalling(uint64_t* keys, int32_t num) {
  __syncthreads();
  for (int32_t size = 2; size <= num; size *= 2) {
    for (int32_t step = size / 2; step > 0; step /= 2) {
      for (int32_t pair = static_cast<int32_t>(threadIdx.x); pair < num / 2; pair += kThreads) {
        const int32_t low = 2 * step * (pair / step) + pair % step;
        const int32_t high = low + step;
        const bool falling = (low & size) == 0;
        const uint64_t a = keys[low];
        const uint64_t b = keys[high];
        if ((a < b) == falling) {
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
