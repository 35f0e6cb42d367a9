// The check of the support of a row of logits and its removal from the row, for pass 2 of
// taopd/head/fused_head.h. Every thread of the row's block calls these functions.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "kernels/cuda/head/student_sweep_arguments.h"
#include "taopd/objective/log_math.h"

namespace taopd::cuda {

// Returns, in every thread, how many support ids come before the padding. Reports wrong ids.
__device__ inline int32_t CheckSupport(const SweepArguments& args, const int32_t* ids) {
  __shared__ int32_t shared_size;
  if (threadIdx.x == 0) shared_size = args.targets.k;
  __syncthreads();
  for (int32_t j = static_cast<int32_t>(threadIdx.x); j < args.targets.k; j += kSweepThreads) {
    if (ids[j] == -1) atomicMin(&shared_size, j);
  }
  __syncthreads();
  const int32_t size = shared_size;
  int32_t error = 0;
  for (int32_t j = static_cast<int32_t>(threadIdx.x); j < args.targets.k; j += kSweepThreads) {
    if (ids[j] < -1 || ids[j] >= args.vocab_size) error |= kHeadSupportIdOutOfRange;
    if (j > size && ids[j] != -1) error |= kHeadIdBehindPadding;
  }
  if (threadIdx.x == 0) {
    if ((args.needs & kNeedsSupport) && size == 0) error |= kHeadEmptySupport;
    if ((args.needs & kNeedsFullVocabulary) && size != args.vocab_size) {
      error |= kHeadIncompleteSupport;
    }
  }
  if (error != 0) atomicOr(args.errors, error);
  return size;
}

// Saves the logit of the sampled token, NaN for a wrong id, and the size of the support.
__device__ inline void TakeSampled(const SweepArguments& args, int64_t n, int32_t size,
                                   const float* row) {
  if (threadIdx.x == 0) {
    const int32_t y = args.targets.sampled_ids_N[n];
    const bool in_range = y >= 0 && y < args.vocab_size;
    args.sampled_logits[n] = in_range ? row[y] : std::numeric_limits<float>::quiet_NaN();
    args.sizes[n] = size;
    if (!in_range) atomicOr(args.errors, static_cast<int32_t>(kHeadSampledIdOutOfRange));
  }
  __syncthreads();
}

// Moves the support's logits from the row to `taken` and replaces them by -inf. For an id out of
// range, it writes NaN and touches no other memory. To find ids that occur twice, each place first
// holds the index j as a bit pattern, which a second occurrence of the id overwrites.
__device__ inline void TakeSupport(const SweepArguments& args, const int32_t* ids, int32_t size,
                                   float* row, float* taken) {
  const auto in_range = [&](int32_t j) { return ids[j] >= 0 && ids[j] < args.vocab_size; };
  const int32_t first = static_cast<int32_t>(threadIdx.x);
  for (int32_t j = first; j < size; j += kSweepThreads) {
    taken[j] = in_range(j) ? row[ids[j]] : std::numeric_limits<float>::quiet_NaN();
  }
  __syncthreads();
  for (int32_t j = first; j < size; j += kSweepThreads) {
    if (in_range(j)) row[ids[j]] = __int_as_float(j);
  }
  __syncthreads();
  bool duplicate = false;
  for (int32_t j = first; j < size; j += kSweepThreads) {
    duplicate = duplicate || (in_range(j) && __float_as_int(row[ids[j]]) != j);
  }
  if (duplicate) atomicOr(args.errors, static_cast<int32_t>(kHeadDuplicateSupportId));
  __syncthreads();
  for (int32_t j = first; j < size; j += kSweepThreads) {
    if (in_range(j)) row[ids[j]] = NegativeInfinity<float>();
  }
  __syncthreads();
}

}  // namespace taopd::cuda
