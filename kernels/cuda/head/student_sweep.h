// Pass 2 of taopd/head/fused_head.h: one read of a row of logits, one block of threads per row.
// StudentSweep is the kernel; every thread of the block calls every function here.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "kernels/cuda/block.h"
#include "kernels/cuda/head/student_sweep_arguments.h"
#include "kernels/cuda/head/top_k_ahead.h"
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
    if (j > size && ids[j] != -1) error |= kHeadIdAfterPadding;
  }
  if (threadIdx.x == 0) {
    if ((args.traits & kNeedsSupport) && size == 0) error |= kHeadEmptySupport;
    if ((args.traits & kNeedsFullVocabulary) && size != args.vocab_size) {
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

// Moves the logits of the support from the row to support_logits and replaces them by -inf. For an
// id out of range, it writes NaN and touches no other memory. To find ids that occur twice, each
// place first holds the index j as a bit pattern, which a second occurrence of the id overwrites.
__device__ inline void TakeSupport(const SweepArguments& args, const int32_t* ids, int32_t size,
                                   float* row, float* support_logits) {
  const auto in_range = [&](int32_t j) { return ids[j] >= 0 && ids[j] < args.vocab_size; };
  const int32_t first = static_cast<int32_t>(threadIdx.x);
  for (int32_t j = first; j < size; j += kSweepThreads) {
    support_logits[j] = in_range(j) ? row[ids[j]] : std::numeric_limits<float>::quiet_NaN();
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

// One tile of a row: the calling thread's vectors of four elements. Vector i starts at column
// ColumnOf(tile, i).
struct SweepTile {
  Float4 vector[kSweepVectors];
};

__device__ inline int64_t ColumnOf(int64_t tile, int i) {
  return tile + (int64_t{i} * kSweepThreads + threadIdx.x) * 4;
}

__device__ inline SweepTile LoadTile(const float* row, int64_t tile, int64_t vocab_size) {
  SweepTile z;
  for (int i = 0; i < kSweepVectors; ++i) {
    z.vector[i] = LoadFour(row, ColumnOf(tile, i), vocab_size);
  }
  return z;
}

// Raises the reference to the largest logit so far, of the row or of this tile. Rescales the
// calling thread's sums and, with kWriteE, the part of E that it wrote in the columns before
// `tile`.
template <typename Element, bool kWriteE>
__device__ void MoveReference(const SweepTile& z, int64_t tile, float scale, SweepSums* sums,
                              Element* e, float* scratch) {
  float high = sums->reference;
  for (const Float4& four : z.vector) {
    for (float logit : four.x) high = MaxOf()(high, logit);
  }
  high = BlockReduce<kSweepThreads>(high, scratch, MaxOf());
  if (sums->reference != NegativeInfinity<float>()) {
    const float lower = (sums->reference - high) * scale;
    const float factor = expf(lower);
    sums->sum_x = factor * (sums->sum_x + lower * sums->sum);
    sums->sum *= factor;
    if constexpr (kWriteE) {
      for (int64_t v = int64_t{threadIdx.x} * 4; v < tile; v += int64_t{kSweepThreads} * 4) {
        for (int lane = 0; lane < 4; ++lane) Store(Load(e + v + lane) * factor, e + v + lane);
      }
    }
  }
  sums->reference = high;
}

// Adds a tile to the calling thread's sums, counts its tokens with kTopK, and writes its E with
// kWriteE.
template <typename Element, bool kWriteE, bool kTopK>
__device__ void AddTile(const SweepArguments& args, const AheadCounts& ahead, int64_t tile,
                        SweepTile* z, SweepSums* sums, Element* e) {
  // While all logits are -inf, the exponentials are 0 with any finite reference.
  const float shift = sums->reference == NegativeInfinity<float>() ? 0.0f : sums->reference;
  for (int i = 0; i < kSweepVectors; ++i) {
    const int64_t first = ColumnOf(tile, i);
    Float4& four = z->vector[i];
    if constexpr (kTopK) {
      if (ahead.size > 0) {
        for (int lane = 0; lane < 4; ++lane) {
          ahead.Count(four.x[lane], static_cast<int32_t>(first + lane));
        }
      }
    }
    for (int lane = 0; lane < 4; ++lane) {
      const float x = (four.x[lane] - shift) * args.scale;
      const float exp_x = expf(x);
      sums->sum += exp_x;
      sums->sum_x += exp_x > 0 ? exp_x * x : 0.0f;  // avoids 0 * -inf
      four.x[lane] = exp_x;
    }
    if constexpr (kWriteE) StoreFour(four, e, first, args.vocab_size);
  }
}

// Reads the row, whose support has been removed, tile by tile; the next tile is loaded while one is
// summed. Returns the block's sums, in every thread.
template <typename Element, bool kWriteE, bool kTopK>
__device__ SweepSums SweepRow(const SweepArguments& args, const AheadCounts& ahead,
                              const float* row, Element* e, float* scratch) {
  const float limit = kMaxOverReference / args.scale;
  SweepSums sums;
  sums.reference = NegativeInfinity<float>();
  SweepTile next = LoadTile(row, 0, args.vocab_size);
  for (int64_t tile = 0; tile < args.vocab_size; tile += kSweepTile) {
    SweepTile z = next;
    bool over = false;
    for (const Float4& four : z.vector) {
      for (float logit : four.x) over = over || logit - sums.reference > limit;
    }
    next = LoadTile(row, tile + kSweepTile, args.vocab_size);
    if (__syncthreads_or(over)) {
      MoveReference<Element, kWriteE>(z, tile, args.scale, &sums, e, scratch);
    }
    AddTile<Element, kWriteE, kTopK>(args, ahead, tile, &z, &sums, e);
  }
  __syncthreads();
  sums.sum = BlockReduce<kSweepThreads>(sums.sum, scratch, SumOf());
  sums.sum_x = BlockReduce<kSweepThreads>(sums.sum_x, scratch, SumOf());
  if (sums.reference == NegativeInfinity<float>()) sums.reference = 0;
  return sums;
}

template <typename Element, bool kWriteE, bool kTopK>
__global__ void __launch_bounds__(kSweepThreads) StudentSweep(SweepArguments args) {
  __shared__ float scratch[kSweepThreads];
  __shared__ uint64_t keys[kTopK ? kMaxTopKMetrics : 1];
  __shared__ int32_t counts[kTopK ? kMaxTopKMetrics : 1];
  const int64_t n = blockIdx.x;
  const int64_t k = args.targets.k;
  float* row = args.logits + n * args.stride;
  Element* e = static_cast<Element*>(args.e) + (kWriteE ? n * args.stride : 0);
  const int32_t* ids = args.targets.support_ids_Nk + n * k;
  float* support_logits = args.support_logits + n * k;

  const int32_t size = CheckSupport(args, ids);
  TakeSampled(args, n, size, row);
  TakeSupport(args, ids, size, row, support_logits);
  AheadCounts ahead;
  if constexpr (kTopK) ahead = PrepareAhead(args, ids, support_logits, size, keys, counts, scratch);
  const SweepSums sums = SweepRow<Element, kWriteE, kTopK>(args, ahead, row, e, scratch);
  if (threadIdx.x == 0) args.sums[n] = sums;
  if constexpr (kTopK) MarkTopK(args, ahead, ids, support_logits, size, args.in_top_k + n * k);
}

}  // namespace taopd::cuda
