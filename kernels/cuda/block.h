// What a block of threads does together, always in the same order, so that results repeat bit for
// bit: reductions, and reading and writing runs of four elements.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "taopd/objective/log_math.h"

namespace taopd::cuda {

struct SumOf {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

// a must not be NaN; a NaN in b is skipped, as in the CPU's row maximum: sums show it.
struct MaxOf {
  __device__ float operator()(float a, float b) const { return b > a ? b : a; }
};

// The same value in every thread. scratch: kThreads elements of shared memory. Ends with all
// threads past their reads of scratch.
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

struct alignas(16) Float4 {
  float x[4];
};
struct alignas(8) Bfloat4 {
  __nv_bfloat16 x[4];
};

// row[first .. first + 3], -inf from num on. row + first is aligned to 16 bytes.
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
