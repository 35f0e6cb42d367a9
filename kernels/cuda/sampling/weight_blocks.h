// The weights of a row of logits and their sums by block. They have the bits of
// kernels/cpu/math/weight_row.h: the same operations in the same order, none of them fused.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "kernels/cuda/block.h"

namespace taopd::cuda {

inline constexpr int kSampleBlock = 1024;  // numbers whose lanes are summed in float32
inline constexpr int kSampleLanes = 16;
inline constexpr int kSampleThreads = 512;
inline constexpr int kBlocksAtOnce = kSampleThreads / kSampleLanes;

// 2^y for y <= 0, with the polynomial of the CPU's weights.
__device__ inline float Exp2OfNonPositive(float y) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  y = y > -127.0f ? y : -127.0f;
  const float shifted = __fadd_rn(y, kRound);
  const float f = __fsub_rn(y, __fsub_rn(shifted, kRound));
  float sum = __fadd_rn(__fmul_rn(f, 0.000154531634f), 0.00133908633f);
  sum = __fadd_rn(__fmul_rn(sum, f), 0.00961808302f);
  sum = __fadd_rn(__fmul_rn(sum, f), 0.0555035695f);
  sum = __fadd_rn(__fmul_rn(sum, f), 0.240226507f);
  sum = __fadd_rn(__fmul_rn(sum, f), 0.693147182f);
  sum = __fadd_rn(__fmul_rn(sum, f), 1.0f);
  // The low bits of `shifted` are the exponent.
  uint32_t bits = 0;
  memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits << 23) + (127u << 23);
  float power = 0;
  memcpy(&power, &bits, sizeof(power));
  return __fmul_rn(sum, power);
}

// exp((z - shift) / temperature) is Weight(z, shift, ScaleToLog2(temperature)).
__device__ inline float ScaleToLog2(float temperature) {
  const auto scale = static_cast<float>(1.0 / static_cast<double>(temperature));
  return __fmul_rn(scale, 1.44269504088896341f);
}
__device__ inline float Weight(float z, float shift, float scale_to_log2) {
  return Exp2OfNonPositive(__fmul_rn(__fsub_rn(z, shift), scale_to_log2));
}

// Writes the sum of the weights of each block of the row. Every thread of the thread block calls
// it. `lanes` has kSampleThreads elements of shared memory, which may be reused as soon as the call
// returns.
__device__ inline void SumWeightBlocks(const float* logits, int64_t vocab_size, float shift,
                                       float scale_to_log2, float* lanes, double* block_sums) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kSampleLanes;
  const int64_t num_blocks = (vocab_size + kSampleBlock - 1) / kSampleBlock;
  for (int64_t first = 0; first < num_blocks; first += kBlocksAtOnce) {
    const int64_t block = first + thread / kSampleLanes;
    const int64_t begin = block * kSampleBlock;
    const int64_t end = begin + kSampleBlock < vocab_size ? begin + kSampleBlock : vocab_size;
    float sum = 0;
    for (int64_t i = begin + lane; i < end; i += kSampleLanes) {
      sum = __fadd_rn(sum, Weight(logits[i], shift, scale_to_log2));
    }
    lanes[thread] = sum;
    __syncthreads();
    if (lane == 0 && block < num_blocks) {
      double total = 0;
      for (int i = 0; i < kSampleLanes; ++i) total += static_cast<double>(lanes[thread + i]);
      block_sums[block] = total;
    }
    __syncthreads();
  }
}

}  // namespace taopd::cuda
