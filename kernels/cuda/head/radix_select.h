// Selection of the largest keys of a block of threads.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/block.h"

namespace taopd::cuda {

// Returns a threshold such that the keys >= it are the `wanted` largest: exactly that many if keys
// are distinct, at least that many otherwise. Every thread of the block calls it and gets the same
// result.
//
// visit(f) must call f(key) for each of the calling thread's keys, the same keys in every pass.
// Keys have kBits significant bits, 32 or 64. REQUIRES: the block has at least `wanted` >= 1 keys.
//
// This is a radix selection that processes eight bits of the key at a time from the top: it looks
// for the smallest prefix that exactly `wanted` keys reach.
template <int kThreads, int kBits, typename Visit>
__device__ uint64_t SelectLargest(int32_t wanted, const Visit& visit) {
  __shared__ int32_t histogram[256];
  __shared__ int32_t shared_digit;
  __shared__ int32_t shared_wanted;
  __shared__ int32_t shared_inside;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  uint64_t prefix = 0;
  uint64_t mask = 0;
  for (int shift = kBits - 8; shift >= 0; shift -= 8) {
    for (int32_t i = thread; i < 256; i += kThreads) histogram[i] = 0;
    __syncthreads();
    visit([&](uint64_t key) {
      if ((key & mask) == prefix) atomicAdd(&histogram[(key >> shift) & 255], 1);
    });
    __syncthreads();
    if (thread < kWarpSize) {
      // Each lane has eight digits. It counts the keys with these digits or larger ones
      // (from_here), and those with only larger ones (above).
      int32_t own = 0;
      for (int i = 0; i < 8; ++i) own += histogram[thread * 8 + i];
      int32_t from_here = own;
      for (int step = 1; step < kWarpSize; step *= 2) {
        const int32_t higher = __shfl_down_sync(0xffffffffu, from_here, step);
        if (thread + step < kWarpSize) from_here += higher;
      }
      int32_t above = from_here - own;
      if (above < wanted && wanted <= from_here) {  // true in one lane
        int32_t digit = thread * 8 + 7;
        while (above + histogram[digit] < wanted) above += histogram[digit--];
        shared_digit = digit;
        shared_wanted = wanted - above;
        shared_inside = histogram[digit];
      }
    }
    __syncthreads();
    prefix |= static_cast<uint64_t>(shared_digit) << shift;
    mask |= uint64_t{255} << shift;
    wanted = shared_wanted;
    const bool all_of_digit = shared_inside == wanted;
    __syncthreads();
    if (all_of_digit) break;
  }
  return prefix;
}

}  // namespace taopd::cuda
