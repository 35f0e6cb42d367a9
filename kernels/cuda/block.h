// The operations that the threads of a block perform together: reductions, and reads and writes of
// four consecutive elements. Their order is fixed, so that results repeat bit for bit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "taopd/objective/log_math.h"

namespace taopd::cuda {

inline constexpr int kWarpSize = 32;

struct SumOf {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

// A NaN in b is skipped, as in the CPU's row maximum; it shows in the sums. a must not be NaN.
struct MaxOf {
  __device__ float operator()(float a, float b) const { return b > a ? b : a; }
};

// Combines the values of all threads of the block; every thread gets the same result. `scratch` has
// kThreads elements of shared memory, which may be reused as soon as the call returns.
template <int kThreads, typename T, typename Combine>
__device__ T BlockReduce(T value, T* scratch, Combine combine) {
  static_assert((kThreads & (kThreads - 1)) == 0);
  const int thread = static_cast<int>(threadIdx.x);
  scratch[thread] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (thread < half) scratch[thread] = combine(scratch[thread], scratch[thread + half]);
    __syncthreads();
  }
  const T result = scratch[0];
  __syncthreads();
  return result;
}

// Combines the values of each kLanes lanes of a warp; every lane gets the result of its group.
template <int kLanes = kWarpSize, typename Combine>
__device__ inline float WarpReduce(float value, Combine combine) {
  for (int mask = kLanes / 2; mask > 0; mask /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, mask));
  }
  return value;
}
__device__ inline float WarpSum(float value) { return WarpReduce(value, SumOf()); }

struct alignas(16) Float4 {
  float x[4];
};
struct alignas(8) Bfloat4 {
  __nv_bfloat16 x[4];
};

// Returns row[first] to row[first + 3], with -inf from index num on. row + first must be aligned to
// 16 bytes.
__device__ inline Float4 LoadFour(const float* row, int64_t first, int64_t num) {
  if (first + 4 <= num) return *reinterpret_cast<const Float4*>(row + first);
  Float4 four;
  for (int i = 0; i < 4; ++i) {
    four.x[i] = first + i < num ? row[first + i] : NegativeInfinity<float>();
  }
  return four;
}

__device__ inline void Store(float value, float* place) { *place = value; }
__device__ inline void Store(float value, __nv_bfloat16* place) {
  *place = __float2bfloat16(value);
}
__device__ inline float Load(const float* place) { return *place; }
__device__ inline float Load(const __nv_bfloat16* place) { return __bfloat162float(*place); }

__device__ inline void StoreFour(const Float4& four, float* row, int64_t first, int64_t num) {
  if (first + 4 <= num) {
    *reinterpret_cast<Float4*>(row + first) = four;
    return;
  }
  for (int i = 0; i < 4; ++i) {
    if (first + i < num) row[first + i] = four.x[i];
  }
}
__device__ inline void StoreFour(const Float4& four, __nv_bfloat16* row, int64_t first,
                                 int64_t num) {
  Bfloat4 narrow;
  for (int i = 0; i < 4; ++i) narrow.x[i] = __float2bfloat16(four.x[i]);
  if (first + 4 <= num) {
    *reinterpret_cast<Bfloat4*>(row + first) = narrow;
    return;
  }
  for (int i = 0; i < 4; ++i) {
    if (first + i < num) row[first + i] = narrow.x[i];
  }
}

}  // namespace taopd::cuda
