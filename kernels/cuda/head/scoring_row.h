// The row work of taopd/head/fused_scoring.h: one block of threads per row of logits. ScoringRow is
// the kernel; the functions before it are its phases, in the order in which they run. Every thread
// of the block calls every phase.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "kernels/cuda/block.h"
#include "kernels/cuda/head/logit_keys.h"
#include "kernels/cuda/head/radix_select.h"
#include "kernels/cuda/head/scoring_tiles.h"
#include "taopd/head/fused_scoring.h"
#include "taopd/objective/log_math.h"

namespace taopd::cuda {

struct ScoringArguments {
  // [rows, stride]. The top-k are overwritten by -inf.
  float* logits = nullptr;
  int64_t stride = 0;
  int64_t vocab_size = 0;
  float scale = 1;  // 1 / temperature
  int32_t top_k = 0;
  TileSums* tiles = nullptr;          // [rows, num_tiles]
  int32_t* selected_tiles = nullptr;  // [rows, num_tiles]
  int32_t num_tiles = 0;
  // Inputs and outputs of these rows; see FusedScoringProblem and FusedScoringResult.
  const int32_t* sampled_ids = nullptr;
  const int32_t* candidate_ids = nullptr;
  int32_t num_candidates = 0;
  FusedScoringResult out;
};

// Shared memory of a block.
struct ScoringShared {
  float scratch[kScoringThreads];
  double wide_scratch[kScoringThreads];
  uint64_t top[kMaxScoringTopK];  // keys of the top-k
  int32_t num_selected;
  int32_t num_top;
};

// The block's row, and the calling thread's place in the block.
struct ScoringRowView {
  int64_t n;
  float* logits;
  TileSums* tiles;
  int32_t* selected;
  int32_t thread, lane, warp;
};

__device__ inline ScoringRowView ViewOfRow(const ScoringArguments& args) {
  const int64_t n = blockIdx.x;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  return {n,
          args.logits + n * args.stride,
          args.tiles + n * args.num_tiles,
          args.selected_tiles + n * args.num_tiles,
          thread,
          thread % kWarpSize,
          thread / kWarpSize};
}

// Returns the logit of the sampled token and saves those of the candidates in their outputs. Single
// logits are read before the top-k are removed from the row. Wrong ids give NaN.
__device__ inline float ReadSingleLogits(const ScoringArguments& args, const ScoringRowView& row) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const FusedScoringResult& out = args.out;
  const auto in_range = [&](int32_t id) { return id >= 0 && id < args.vocab_size; };
  float sampled_logit = kNan;
  if (args.sampled_ids != nullptr) {
    const int32_t y = args.sampled_ids[row.n];
    if (in_range(y)) {
      sampled_logit = row.logits[y];
    } else if (row.thread == 0) {
      atomicOr(out.errors, static_cast<int32_t>(kScoringSampledIdOutOfRange));
    }
  }
  for (int32_t j = row.thread; j < args.num_candidates; j += kScoringThreads) {
    const int64_t place = row.n * args.num_candidates + j;
    const int32_t id = args.candidate_ids[place];
    if (!in_range(id)) atomicOr(out.errors, static_cast<int32_t>(kScoringCandidateIdOutOfRange));
    out.candidate_log_probs_NM[place] = in_range(id) ? row.logits[id] : kNan;
  }
  return sampled_logit;
}

// Reads the whole row once: computes the sums of its tiles, and the rank of the sampled token.
__device__ inline void SweepTiles(const ScoringArguments& args, const ScoringRowView& row,
                                  float sampled_logit, ScoringShared* shared) {
  constexpr int kInFlight = 4;  // tiles that a warp is loading at a time
  const bool ranked = args.out.sampled_ranks_N != nullptr;
  int32_t rank = 0;
  for (int32_t first_tile = row.warp; first_tile < args.num_tiles;
       first_tile += kInFlight * kScoringWarps) {
    Float4 z[kInFlight];
    const auto column = [&](int i) {
      return (int64_t{first_tile} + i * kScoringWarps) * kScoringTile + row.lane * 4;
    };
    for (int i = 0; i < kInFlight; ++i) {
      z[i] = LoadFour(row.logits, column(i), args.vocab_size);
    }
    for (int i = 0; i < kInFlight; ++i) {
      const int32_t tile = first_tile + i * kScoringWarps;
      if (tile >= args.num_tiles) break;
      const TileSums sums = SumTile(z[i], args.scale);
      if (row.lane == 0) row.tiles[tile] = sums;
      for (int j = 0; ranked && j < 4; ++j) {
        rank += column(i) + j < args.vocab_size && z[i].x[j] >= sampled_logit;
      }
    }
  }
  __syncthreads();
  if (!ranked) return;
  int32_t* counts = reinterpret_cast<int32_t*>(shared->scratch);
  rank = BlockReduce<kScoringThreads>(rank, counts, SumOf());
  if (row.thread == 0) args.out.sampled_ranks_N[row.n] = rank;
}

// Selects the tiles that contain the k > 0 largest logits: those whose maximum is at least the k-th
// largest tile maximum, because k tiles have an element that large. Returns that maximum as
// OrderedBits. (Tiles of NaN have the maximum -inf.)
__device__ inline uint64_t SelectTiles(const ScoringArguments& args, const ScoringRowView& row,
                                       ScoringShared* shared) {
  uint64_t lowest_max = 0;
  if (args.top_k < args.num_tiles) {
    lowest_max = SelectLargest<kScoringThreads, 32>(args.top_k, [&](const auto& take) {
      for (int32_t i = row.thread; i < args.num_tiles; i += kScoringThreads) {
        take(OrderedBits(row.tiles[i].max));
      }
    });
  }
  if (row.thread == 0) {
    shared->num_selected = 0;
    shared->num_top = 0;
  }
  __syncthreads();
  for (int32_t i = row.thread; i < args.num_tiles; i += kScoringThreads) {
    // The order does not matter: keys are distinct, and sums go to the tile's own place.
    if (OrderedBits(row.tiles[i].max) >= lowest_max) {
      row.selected[atomicAdd(&shared->num_selected, 1)] = i;
    }
  }
  __syncthreads();
  return lowest_max;
}

// Finds the k > 0 largest logits in the selected tiles. Writes their ids, saves their logits in
// log_probs_Nk, and replaces them by -inf.
__device__ inline void TakeTopK(const ScoringArguments& args, const ScoringRowView& row,
                                uint64_t lowest_max, ScoringShared* shared) {
  const int32_t k = args.top_k;
  const auto visit = [&](const auto& take) {
    for (int32_t i = row.warp; i < shared->num_selected; i += kScoringWarps) {
      const int64_t first = int64_t{row.selected[i]} * kScoringTile;
      for (int column = row.lane; column < kScoringTile; column += kWarpSize) {
        const int64_t v = first + column;
        if (v >= args.vocab_size || OrderedBits(row.logits[v]) < lowest_max) continue;
        take(LogitKey(row.logits[v], static_cast<int32_t>(v)));
      }
    }
  };
  const uint64_t threshold = SelectLargest<kScoringThreads, 64>(k, visit);
  visit([&](uint64_t key) {
    if (key >= threshold) shared->top[atomicAdd(&shared->num_top, 1)] = key;
  });
  __syncthreads();
  const int32_t power = NextPowerOfTwo(k);
  for (int32_t j = k + row.thread; j < power; j += kScoringThreads) shared->top[j] = 0;
  SortDescending<kScoringThreads>(shared->top, power);
  for (int32_t j = row.thread; j < k; j += kScoringThreads) {
    const int32_t id = IdOfKey(shared->top[j]);
    args.out.ids_Nk[row.n * k + j] = id;
    args.out.log_probs_Nk[row.n * k + j] = row.logits[id];
    row.logits[id] = NegativeInfinity<float>();
  }
  __syncthreads();
}

// Computes the sums of the selected tiles again, without the top-k.
__device__ inline void SumSelectedTiles(const ScoringArguments& args, const ScoringRowView& row,
                                        const ScoringShared& shared) {
  for (int32_t i = row.warp; i < shared.num_selected; i += kScoringWarps) {
    const int32_t tile = row.selected[i];
    const int64_t column = int64_t{tile} * kScoringTile + row.lane * 4;
    const TileSums sums = SumTile(LoadFour(row.logits, column, args.vocab_size), args.scale);
    if (row.lane == 0) row.tiles[tile] = sums;
  }
  __syncthreads();
}

// Returns the log-sum-exp of the top-k, whose logits are in log_probs_Nk, or -inf for k = 0.
__device__ inline double LogSumOfTopK(const ScoringArguments& args, const ScoringRowView& row,
                                      ScoringShared* shared) {
  const int32_t k = args.top_k;
  if (k == 0) return NegativeInfinity<double>();
  const double scale = args.scale;
  const float* logits = args.out.log_probs_Nk + row.n * k;
  const double high = logits[0] * scale;  // the largest, or a NaN, which makes the result NaN
  double sum = 0;
  for (int32_t j = row.thread; j < k; j += kScoringThreads) {
    const double logit = logits[j] * scale;
    sum += logit == NegativeInfinity<double>() ? 0.0 : exp(logit - high);
  }
  sum = BlockReduce<kScoringThreads>(sum, shared->wide_scratch, SumOf());
  return sum == 0 ? NegativeInfinity<double>() : high + log(sum);
}

// Returns the log of the sum of exp(z) over the tokens outside of the top-k and of the candidates.
// The top-k are removed already; this removes the candidates, too.
__device__ inline double LogSumOutsideOfCandidates(const ScoringArguments& args,
                                                   const ScoringRowView& row,
                                                   ScoringShared* shared) {
  for (int32_t j = row.thread; j < args.num_candidates; j += kScoringThreads) {
    const int32_t id = args.candidate_ids[row.n * args.num_candidates + j];
    if (id >= 0 && id < args.vocab_size) row.logits[id] = NegativeInfinity<float>();
  }
  __syncthreads();
  for (int32_t tile = row.warp; tile < args.num_tiles; tile += kScoringWarps) {
    const int64_t column = int64_t{tile} * kScoringTile + row.lane * 4;
    const TileSums sums = SumTile(LoadFour(row.logits, column, args.vocab_size), args.scale);
    if (row.lane == 0) row.tiles[tile] = sums;
  }
  __syncthreads();
  return LogSumOf(
      CombineTiles(row.tiles, args.num_tiles, args.scale, shared->scratch, shared->wide_scratch),
      args.scale);
}

// Turns the saved logits of the top-k and of the candidates into log-probs. Returns the top-k's
// part of the entropy.
__device__ inline double NormalizeLogits(const ScoringArguments& args, const ScoringRowView& row,
                                         double log_sum_exp, ScoringShared* shared) {
  const int32_t k = args.top_k;
  const double scale = args.scale;
  double support_entropy = 0;
  for (int32_t j = row.thread; j < k; j += kScoringThreads) {
    float* value = args.out.log_probs_Nk + row.n * k + j;
    const double log_p = *value * scale - log_sum_exp;
    *value = static_cast<float>(log_p);
    if (log_p != NegativeInfinity<double>()) support_entropy -= exp(log_p) * log_p;
  }
  support_entropy = BlockReduce<kScoringThreads>(support_entropy, shared->wide_scratch, SumOf());
  for (int32_t j = row.thread; j < args.num_candidates; j += kScoringThreads) {
    float* value = args.out.candidate_log_probs_NM + row.n * args.num_candidates + j;
    *value = static_cast<float>(*value * scale - log_sum_exp);
  }
  return support_entropy;
}

__global__ void __launch_bounds__(kScoringThreads) ScoringRow(ScoringArguments args) {
  __shared__ ScoringShared shared;
  const ScoringRowView row = ViewOfRow(args);
  const float sampled_logit = ReadSingleLogits(args, row);
  SweepTiles(args, row, sampled_logit, &shared);
  if (args.top_k > 0) {
    const uint64_t lowest_max = SelectTiles(args, row, &shared);
    TakeTopK(args, row, lowest_max, &shared);
    SumSelectedTiles(args, row, shared);
  }

  const double scale = args.scale;
  const ComplementSums rest =
      CombineTiles(row.tiles, args.num_tiles, args.scale, shared.scratch, shared.wide_scratch);
  const double tail = LogSumOf(rest, scale);
  const double log_support = LogSumOfTopK(args, row, &shared);
  const double log_sum_exp = LogAddExp(tail, log_support);
  const double outside = args.out.candidate_log_tail_N != nullptr
                             ? LogSumOutsideOfCandidates(args, row, &shared)
                             : 0.0;
  const double support_entropy = NormalizeLogits(args, row, log_sum_exp, &shared);
  if (row.thread != 0) return;
  const FusedScoringResult& out = args.out;
  out.log_tail_N[row.n] = static_cast<float>(tail - log_sum_exp);
  out.log_support_mass_N[row.n] = static_cast<float>(log_support - log_sum_exp);
  out.log_sum_exp_N[row.n] = static_cast<float>(log_sum_exp);
  if (out.candidate_log_tail_N != nullptr) {
    out.candidate_log_tail_N[row.n] = static_cast<float>(outside - log_sum_exp);
  }
  if (args.sampled_ids != nullptr) {
    out.sampled_log_probs_N[row.n] = static_cast<float>(sampled_logit * scale - log_sum_exp);
  }
  if (out.entropy_N != nullptr) {
    const double entropy = support_entropy + EntropyOfRow(rest, scale, tail - log_sum_exp,
                                                          log_sum_exp, nullptr, nullptr, 0);
    out.entropy_N[row.n] = static_cast<float>(entropy < 0 ? 0 : entropy);
  }
}

}  // namespace taopd::cuda
