// Pass 2 of taopd/head/fused_head.h: one read of a row of logits, one block per row.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/head/sort_keys.h"
#include "taopd/head/fused_head.h"
#include "taopd/head/logit_key.h"

namespace taopd::cuda {

// What the sweep leaves of a row's complement (the tokens outside of the support).
struct SweepSums {
  float reference = 0;  // r
  float sum = 0;        // of e = exp((z - r) * scale)
  float sum_x = 0;      // of e (z - r) * scale
};

struct SweepArguments {
  float* logits = nullptr;  // [rows, stride]; the support's places become -inf
  int64_t stride = 0;       // a multiple of 4
  int64_t vocabulary_size = 0;
  float scale = 1;                       // 1 / temperature
  const int32_t* support_ids = nullptr;  // [rows, k]
  const int32_t* sampled_ids = nullptr;  // [rows]
  int32_t k = 0;
  uint32_t needs = 0;
  void* e = nullptr;       // [rows, stride] of the kernel's Element; may be the logits for float
  float* taken = nullptr;  // [rows, k] logits of the support
  float* sampled_logits = nullptr;  // [rows]
  int32_t* sizes = nullptr;         // [rows] ids before the padding
  SweepSums* sums = nullptr;        // [rows]
  uint8_t* in_top_k = nullptr;      // [rows, k]; kTopK only
  int32_t* errors = nullptr;
};

inline constexpr int kSweepThreads = 512;
inline constexpr int kSweepVectors = 4;  // of four elements, per thread and tile
inline constexpr int64_t kSweepTile = int64_t{kSweepThreads} * kSweepVectors * 4;

// How many support ids come before the padding, in every thread; sets errors.
__device__ inline int32_t CheckSupport(const SweepArguments& args, const int32_t* ids) {
  __shared__ int32_t shared_size;
  if (threadIdx.x == 0) shared_size = args.k;
  __syncthreads();
  for (int32_t j = static_cast<int32_t>(threadIdx.x); j < args.k; j += kSweepThreads) {
    if (ids[j] == -1) atomicMin(&shared_size, j);
  }
  __syncthreads();
  const int32_t size = shared_size;
  int32_t error = 0;
  for (int32_t j = static_cast<int32_t>(threadIdx.x); j < args.k; j += kSweepThreads) {
    if (ids[j] < -1 || ids[j] >= args.vocabulary_size) error |= kHeadSupportIdOutOfRange;
    if (j > size && ids[j] != -1) error |= kHeadIdBehindPadding;
  }
  if (threadIdx.x == 0) {
    if ((args.needs & kNeedsSupport) && size == 0) error |= kHeadEmptySupport;
    if ((args.needs & kNeedsFullVocabulary) && size != args.vocabulary_size) {
      error |= kHeadIncompleteSupport;
    }
  }
  if (error != 0) atomicOr(args.errors, error);
  return size;
}

// The support's logits leave the row: saved in taken, -inf in their places. An id out of range is
// NaN and touches nothing. Each place first holds the index j as a bit pattern, which a second
// occurrence of the id overwrites.
__device__ inline void TakeSupport(const SweepArguments& args, const int32_t* ids, int32_t size,
                                   float* row, float* taken) {
  const auto in_range = [&](int32_t j) { return ids[j] >= 0 && ids[j] < args.vocabulary_size; };
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

// Counts of the complement's tokens ahead of the support's, for kTopKOverlap: a token that is
// smaller than exactly i of the support's keys is ahead of those from i on.
struct AheadCounts {
  uint64_t* keys = nullptr;   // [size], falling; shared
  int32_t* counts = nullptr;  // [size]; shared
  int32_t size = 0;
  float lowest = 0;  // the support's smallest logit

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

template <typename Element, bool kWriteE, bool kTopK>
__global__ void __launch_bounds__(kSweepThreads) StudentSweep(SweepArguments args) {
  __shared__ float scratch[kSweepThreads];
  __shared__ uint64_t keys[kTopK ? kMaxTopKMetrics : 1];
  __shared__ int32_t counts[kTopK ? kMaxTopKMetrics : 1];
  const int64_t n = blockIdx.x;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  float* row = args.logits + n * args.stride;
  Element* e = static_cast<Element*>(args.e) + (kWriteE ? n * args.stride : 0);
  const int32_t* ids = args.support_ids + n * args.k;
  float* taken = args.taken + n * args.k;

  const int32_t size = CheckSupport(args, ids);
  if (thread == 0) {
    const int32_t y = args.sampled_ids[n];
    const bool in_range = y >= 0 && y < args.vocabulary_size;
    args.sampled_logits[n] = in_range ? row[y] : std::numeric_limits<float>::quiet_NaN();
    args.sizes[n] = size;
    if (!in_range) atomicOr(args.errors, static_cast<int32_t>(kHeadSampledIdOutOfRange));
  }
  __syncthreads();
  TakeSupport(args, ids, size, row, taken);

  AheadCounts ahead;
  if constexpr (kTopK) {
    // The whole vocabulary has nothing outside; larger supports are refused by the launcher.
    const bool counted = size <= kMaxTopKMetrics && size < args.vocabulary_size;
    ahead = {keys, counts, counted ? size : 0, std::numeric_limits<float>::infinity()};
    if (ahead.size > 0) {
      const int32_t power = NextPowerOfTwo(size);
      for (int32_t j = thread; j < power; j += kSweepThreads) {
        keys[j] = j < size ? LogitKey(taken[j], ids[j]) : 0;
        counts[j] = 0;
      }
      SortFalling<kSweepThreads>(keys, power);
      float lowest = std::numeric_limits<float>::infinity();
      for (int32_t j = thread; j < size; j += kSweepThreads) {
        // A NaN is read as -inf, by the keys too.
        const float logit = taken[j] == taken[j] ? taken[j] : NegativeInfinity<float>();
        lowest = logit < lowest ? logit : lowest;
      }
      ahead.lowest = -BlockReduce<kSweepThreads>(-lowest, scratch, MaxOf());
      // The support's own places hold -inf now and must not be counted.
      if (ahead.lowest == NegativeInfinity<float>())
        ahead.lowest = -std::numeric_limits<float>::max();
    }
  }

  const float limit = kMaxOverReference / args.scale;
  float reference = NegativeInfinity<float>();
  float sum = 0;
  float sum_x = 0;
  Float4 next[kSweepVectors];
  for (int i = 0; i < kSweepVectors; ++i) {
    next[i] = LoadFour(row, (int64_t{i} * kSweepThreads + thread) * 4, args.vocabulary_size);
  }
  for (int64_t tile = 0; tile < args.vocabulary_size; tile += kSweepTile) {
    Float4 z[kSweepVectors];
    bool over = false;
    for (int i = 0; i < kSweepVectors; ++i) {
      z[i] = next[i];
      for (int lane = 0; lane < 4; ++lane) over = over || z[i].x[lane] - reference > limit;
    }
    for (int i = 0; i < kSweepVectors; ++i) {
      next[i] = LoadFour(row, tile + kSweepTile + (int64_t{i} * kSweepThreads + thread) * 4,
                         args.vocabulary_size);
    }
    if (__syncthreads_or(over)) {
      float high = reference;
      for (int i = 0; i < kSweepVectors; ++i) {
        for (int lane = 0; lane < 4; ++lane) high = MaxOf()(high, z[i].x[lane]);
      }
      high = BlockReduce<kSweepThreads>(high, scratch, MaxOf());
      if (reference != NegativeInfinity<float>()) {
        const float lower = (reference - high) * args.scale;
        const float factor = expf(lower);
        sum_x = factor * (sum_x + lower * sum);
        sum *= factor;
        if constexpr (kWriteE) {
          // Each thread rescales what it wrote itself.
          for (int64_t v = int64_t{thread} * 4; v < tile; v += int64_t{kSweepThreads} * 4) {
            for (int lane = 0; lane < 4; ++lane) Store(Load(e + v + lane) * factor, e + v + lane);
          }
        }
      }
      reference = high;
    }
    // Everything so far is -inf: the exponentials are 0 with any finite reference.
    const float shift = reference == NegativeInfinity<float>() ? 0.0f : reference;
    for (int i = 0; i < kSweepVectors; ++i) {
      const int64_t first = tile + (int64_t{i} * kSweepThreads + thread) * 4;
      if constexpr (kTopK) {
        if (ahead.size > 0) {
          for (int lane = 0; lane < 4; ++lane) {
            ahead.Count(z[i].x[lane], static_cast<int32_t>(first + lane));
          }
        }
      }
      for (int lane = 0; lane < 4; ++lane) {
        const float x = (z[i].x[lane] - shift) * args.scale;
        const float exp_x = expf(x);
        sum += exp_x;
        sum_x += exp_x > 0 ? exp_x * x : 0.0f;  // not 0 * -inf
        z[i].x[lane] = exp_x;
      }
      if constexpr (kWriteE) StoreFour(z[i], e, first, args.vocabulary_size);
    }
  }
  __syncthreads();
  sum = BlockReduce<kSweepThreads>(sum, scratch, SumOf());
  sum_x = BlockReduce<kSweepThreads>(sum_x, scratch, SumOf());
  if (thread == 0) {
    args.sums[n] = {reference == NegativeInfinity<float>() ? 0.0f : reference, sum, sum_x};
  }

  if constexpr (kTopK) {
    uint8_t* in_top_k = args.in_top_k + n * args.k;
    for (int32_t j = thread; j < size; j += kSweepThreads) {
      bool inside = size == args.vocabulary_size;
      if (ahead.size > 0) {
        const uint64_t key = LogitKey(taken[j], ids[j]);
        int32_t num_ahead = 0;  // of the whole vocabulary
        for (int32_t i = 0; i < size && num_ahead < size; ++i) {
          num_ahead += counts[i];
          if (keys[i] == key) break;
          ++num_ahead;
        }
        inside = num_ahead < size;
      }
      in_top_k[j] = inside ? 1 : 0;
    }
  }
}

}  // namespace taopd::cuda
