// The norm and rotation of one head by a warp, for training
// (taopd/layers/norms_and_swiglu.h) and for inference (taopd/attention/paged_attention_cuda.h).
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/block.h"

namespace taopd::cuda {

// Returns the number that results from storing and loading `value`.
template <typename Element>
__device__ float Round(float value) {
  Element stored;
  Store(value, &stored);
  return Load(&stored);
}

// Returns the sum over the block's threads, the same in every thread.
template <int kThreads>
__device__ float Sum(float value) {
  __shared__ float sums[kThreads / kWarpSize];
  value = WarpSum(value);
  if (threadIdx.x % kWarpSize == 0) sums[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  float total = 0;
  for (int warp = 0; warp < kThreads / kWarpSize; ++warp) total += sums[warp];
  return total;
}

__device__ inline float InverseRms(float sum_of_squares, int64_t n, float eps) {
  return 1.0f / std::sqrt(sum_of_squares / static_cast<float>(n) + eps);
}

// Normalizes and rotates one head of `size` elements. Null pointers leave out the norm (`weight`),
// the rotation (cos and sin) and the result 1 / rms (inverse_rms_out). `out` may be x itself.
// Every lane of the warp calls it.
template <typename Element>
__device__ void NormRotateHead(const Element* x, const Element* weight, const Element* cos,
                               const Element* sin, int64_t size, float eps, Element* out,
                               float* inverse_rms_out) {
  const int64_t half = size / 2, lane = threadIdx.x % kWarpSize;
  float inverse_rms = 1;
  if (weight != nullptr) {
    float squares = 0;
    for (int64_t i = lane; i < size; i += kWarpSize) squares += Load(x + i) * Load(x + i);
    inverse_rms = InverseRms(WarpSum(squares), size, eps);
    if (inverse_rms_out != nullptr && lane == 0) *inverse_rms_out = inverse_rms;
  }
  const auto ready = [&](int64_t i) {
    if (weight == nullptr) return Load(x + i);
    return Round<Element>(Round<Element>(Load(x + i) * inverse_rms) * Load(weight + i));
  };
  for (int64_t i = lane; i < half; i += kWarpSize) {
    const float first = ready(i), second = ready(half + i);
    if (cos == nullptr) {
      Store(first, out + i);
      Store(second, out + half + i);
      continue;
    }
    Store(Round<Element>(first * Load(cos + i)) + second * Load(sin + i), out + i);
    Store(Round<Element>(second * Load(cos + half + i)) + first * Load(sin + half + i),
          out + half + i);
  }
}

}  // namespace taopd::cuda
