// The ids of a row's support that are among the student's own k most probable (kTopKOverlap),
// counted while pass 2 of taopd/head/fused_head.h reads the row.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "kernels/cuda/block.h"
#include "kernels/cuda/head/logit_keys.h"
#include "kernels/cuda/head/student_sweep_arguments.h"
#include "taopd/objective/log_math.h"

namespace taopd::cuda {

// Counts how many tokens of the complement are ahead of each token of the support, for
// kTopKOverlap. A token whose key is smaller than exactly i of the support's keys is ahead of the
// tokens of the support from i on. keys and counts are shared memory.
struct AheadCounts {
  uint64_t* keys = nullptr;   // [size], in descending order
  int32_t* counts = nullptr;  // [size]
  int32_t size = 0;           // 0: nothing is counted
  float lowest = 0;           // the support's smallest logit

  __device__ void Count(float logit, int32_t id) const {
    if (!(logit >= lowest)) return;
    const uint64_t key = LogitKey(logit, id);
    int32_t low = 0;
    int32_t high = size;
    while (low < high) {
      const int32_t middle = (low + high) / 2;
      if (keys[middle] > key) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (low < size) atomicAdd(&counts[low], 1);
  }
};

// Prepares the counts of a row whose support has been removed. `scratch` has kSweepThreads elements
// of shared memory; keys and counts have kMaxTopKMetrics. If the support is the whole vocabulary,
// nothing is outside of it and nothing is counted; supports larger than kMaxTopKMetrics are refused
// before the launch.
__device__ inline AheadCounts PrepareAhead(const SweepArguments& args, const int32_t* ids,
                                           const float* support_logits, int32_t size,
                                           uint64_t* keys, int32_t* counts, float* scratch) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const bool counted = size <= kMaxTopKMetrics && size < args.vocab_size;
  AheadCounts ahead{keys, counts, counted ? size : 0, kInfinity};
  if (ahead.size == 0) return ahead;
  const int32_t power = NextPowerOfTwo(size);
  for (int32_t j = thread; j < power; j += kSweepThreads) {
    keys[j] = j < size ? LogitKey(support_logits[j], ids[j]) : 0;
    counts[j] = 0;
  }
  SortDescending<kSweepThreads>(keys, power);
  float lowest = kInfinity;
  for (int32_t j = thread; j < size; j += kSweepThreads) {
    // A NaN is read as -inf, as in the keys.
    const float logit =
        support_logits[j] == support_logits[j] ? support_logits[j] : NegativeInfinity<float>();
    lowest = logit < lowest ? logit : lowest;
  }
  ahead.lowest = -BlockReduce<kSweepThreads>(-lowest, scratch, MaxOf());
  // The support's own places are -inf now and must not be counted.
  if (ahead.lowest == NegativeInfinity<float>()) ahead.lowest = -std::numeric_limits<float>::max();
  return ahead;
}

// in_top_k[j] = 1 if fewer than `size` tokens of the vocabulary are ahead of ids[j], otherwise 0.
__device__ inline void MarkTopK(const SweepArguments& args, const AheadCounts& ahead,
                                const int32_t* ids, const float* support_logits, int32_t size,
                                uint8_t* in_top_k) {
  for (int32_t j = static_cast<int32_t>(threadIdx.x); j < size; j += kSweepThreads) {
    bool inside = size == args.vocab_size;
    if (ahead.size > 0) {
      const uint64_t key = LogitKey(support_logits[j], ids[j]);
      int32_t num_ahead = 0;
      for (int32_t i = 0; i < size && num_ahead < size; ++i) {
        num_ahead += ahead.counts[i];
        if (ahead.keys[i] == key) break;
        ++num_ahead;
      }
      inside = num_ahead < size;
    }
    in_top_k[j] = inside ? 1 : 0;
  }
}

}  // namespace taopd::cuda
