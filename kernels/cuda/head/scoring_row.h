// The row work of taopd/head/fused_scoring.h: one block per row of logits.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/head/sort_keys.h"
#include "taopd/head/fused_scoring.h"
#include "taopd/head/logit_key.h"
#include "taopd/head/student_row.h"
#include "taopd/objective/log_math.h"

namespace taopd::cuda {

inline constexpr int kScoringThreads = 512;
inline constexpr int kWarpSize = 32;
inline constexpr int kScoringWarps = kScoringThreads / kWarpSize;
static_assert(kScoringTile == 4 * kWarpSize);  // four columns per lane

// Of one tile of columns: the maximum m, sum of e = exp((z - m) scale), sum of e (z - m) scale.
struct TileSums {
  float max = 0;
  float sum = 0;
  float sum_x = 0;
};

struct ScoringArguments {
  float* logits = nullptr;  // [rows, stride]; the top-k's places become -inf
  int64_t stride = 0;
  int64_t vocabulary_size = 0;
  float scale = 1;
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

// z: this lane's four columns of the tile.
__device__ inline TileSums SumTile(const Float4& z, float scale) {
  float high = NegativeInfinity<float>();
  for (int i = 0; i < 4; ++i) high = MaxOf()(high, z.x[i]);
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
    high = MaxOf()(high, __shfl_xor_sync(0xffffffffu, high, mask));
  }
  const float shift = high == NegativeInfinity<float>() ? 0.0f : high;
  TileSums tile{high, 0, 0};
  for (int i = 0; i < 4; ++i) {
    const float x = (z.x[i] - shift) * scale;
    const float e = expf(x);
    tile.sum += e;
    tile.sum_x += e > 0 ? e * x : 0.0f;  // not 0 * -inf
  }
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
    tile.sum += __shfl_xor_sync(0xffffffffu, tile.sum, mask);
    tile.sum_x += __shfl_xor_sync(0xffffffffu, tile.sum_x, mask);
  }
  return tile;
}

// A radix selection, eight bits of the key at a time from the top: finds the smallest prefix such
// that exactly `wanted` keys have a prefix at least as large. visit(f) calls f(key) for this
// thread's keys, the same ones in every pass. Returns the threshold: keys >= it are selected; they
// are exactly `wanted` when keys are distinct, and at least that many otherwise. REQUIRES: at least
// `wanted` >= 1 keys. kBits: 32 or 64 significant bits.
template <int kBits, typename Visit>
__device__ uint64_t SelectLargest(int32_t wanted, const Visit& visit) {
  __shared__ int32_t histogram[256];
  __shared__ int32_t shared_digit;
  __shared__ int32_t shared_wanted;
  __shared__ int32_t shared_inside;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  uint64_t prefix = 0;
  uint64_t mask = 0;
  for (int shift = kBits - 8; shift >= 0; shift -= 8) {
    for (int32_t i = thread; i < 256; i += kScoringThreads) histogram[i] = 0;
    __syncthreads();
    visit([&](uint64_t key) {
      if ((key & mask) == prefix) atomicAdd(&histogram[(key >> shift) & 255], 1);
    });
    __syncthreads();
    if (thread < kWarpSize) {
      // Eight digits a lane: how many keys have this lane's digits or larger ones, and only larger.
      int32_t own = 0;
      for (int i = 0; i < 8; ++i) own += histogram[thread * 8 + i];
      int32_t from_here = own;
      for (int step = 1; step < kWarpSize; step *= 2) {
        const int32_t higher = __shfl_down_sync(0xffffffffu, from_here, step);
        if (thread + step < kWarpSize) from_here += higher;
      }
      int32_t above = from_here - own;
      if (above < wanted && wanted <= from_here) {  // one lane
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

// The row's tokens outside of the top-k, from the tiles' sums, in the order of the tiles.
__device__ inline ComplementSums CombineTiles(const TileSums* tiles, int32_t num_tiles, float scale,
                                              float* scratch, double* wide_scratch) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  float high = NegativeInfinity<float>();
  for (int32_t i = thread; i < num_tiles; i += kScoringThreads) high = MaxOf()(high, tiles[i].max);
  high = BlockReduce<kScoringThreads>(high, scratch, MaxOf());
  ComplementSums rest;
  rest.reference = high == NegativeInfinity<float>() ? 0.0 : static_cast<double>(high);
  double sum = 0;
  double sum_x = 0;
  for (int32_t i = thread; i < num_tiles; i += kScoringThreads) {
    const TileSums tile = tiles[i];
    if (tile.max == NegativeInfinity<float>()) {
      sum += tile.sum;  // 0, or the NaN of a tile that has one
      continue;
    }
    const double lower = (static_cast<double>(tile.max) - rest.reference) * scale;
    const double factor = exp(lower);
    sum += factor * tile.sum;
    sum_x += factor > 0 ? factor * (tile.sum_x + lower * tile.sum) : 0.0;
  }
  rest.sum = BlockReduce<kScoringThreads>(sum, wide_scratch, SumOf());
  rest.sum_x = BlockReduce<kScoringThreads>(sum_x, wide_scratch, SumOf());
  return rest;
}

__global__ void __launch_bounds__(kScoringThreads) ScoringRow(ScoringArguments args) {
  __shared__ float scratch[kScoringThreads];
  __shared__ double wide_scratch[kScoringThreads];
  __shared__ uint64_t top[kMaxScoringTopK];
  __shared__ int32_t num_selected;
  __shared__ int32_t num_top;
  const int64_t n = blockIdx.x;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % kWarpSize;
  const int32_t warp = thread / kWarpSize;
  const int32_t k = args.top_k;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  float* row = args.logits + n * args.stride;
  TileSums* tiles = args.tiles + n * args.num_tiles;
  int32_t* selected = args.selected_tiles + n * args.num_tiles;
  const FusedScoringResult& out = args.out;

  // Everything that reads single logits comes before the top-k leave the row.
  float sampled_logit = nan;
  if (args.sampled_ids != nullptr) {
    const int32_t y = args.sampled_ids[n];
    if (y >= 0 && y < args.vocabulary_size) {
      sampled_logit = row[y];
    } else if (thread == 0) {
      atomicOr(out.errors, static_cast<int32_t>(kScoringSampledIdOutOfRange));
    }
  }
  for (int32_t j = thread; j < args.num_candidates; j += kScoringThreads) {
    const int32_t id = args.candidate_ids[n * args.num_candidates + j];
    const bool in_range = id >= 0 && id < args.vocabulary_size;
    if (!in_range) atomicOr(out.errors, static_cast<int32_t>(kScoringCandidateIdOutOfRange));
    out.candidate_log_probs_NM[n * args.num_candidates + j] = in_range ? row[id] : nan;
  }

  // The one read of the row.
  const bool ranked = out.sampled_ranks_N != nullptr;
  int32_t rank = 0;
  constexpr int kInFlight = 4;  // tiles whose loads a warp has under way
  for (int32_t first_tile = warp; first_tile < args.num_tiles;
       first_tile += kInFlight * kScoringWarps) {
    Float4 z[kInFlight];
    const auto column = [&](int i) {
      return (int64_t{first_tile} + i * kScoringWarps) * kScoringTile + lane * 4;
    };
    for (int i = 0; i < kInFlight; ++i) z[i] = LoadFour(row, column(i), args.vocabulary_size);
    for (int i = 0; i < kInFlight; ++i) {
      const int32_t tile = first_tile + i * kScoringWarps;
      if (tile >= args.num_tiles) break;
      const TileSums sums = SumTile(z[i], args.scale);
      if (lane == 0) tiles[tile] = sums;
      for (int j = 0; ranked && j < 4; ++j) {
        rank += column(i) + j < args.vocabulary_size && z[i].x[j] >= sampled_logit;
      }
    }
  }
  __syncthreads();
  if (ranked) {
    int32_t* counts = reinterpret_cast<int32_t*>(scratch);
    rank = BlockReduce<kScoringThreads>(rank, counts, SumOf());
    if (thread == 0) out.sampled_ranks_N[n] = rank;
  }

  // The k largest lie in tiles whose maximum is at least the k-th largest tile maximum: k tiles
  // have an element that large. (Tiles of NaN have the maximum -inf.)
  if (k > 0) {
    uint64_t lowest_max = 0;
    if (k < args.num_tiles) {
      lowest_max = SelectLargest<32>(k, [&](const auto& take) {
        for (int32_t i = thread; i < args.num_tiles; i += kScoringThreads) {
          take(OrderedBits(tiles[i].max));
        }
      });
    }
    if (thread == 0) {
      num_selected = 0;
      num_top = 0;
    }
    __syncthreads();
    for (int32_t i = thread; i < args.num_tiles; i += kScoringThreads) {
      // In any order: keys are distinct, and sums go to the tile's own place.
      if (OrderedBits(tiles[i].max) >= lowest_max) selected[atomicAdd(&num_selected, 1)] = i;
    }
    __syncthreads();
    const auto visit = [&](const auto& take) {
      for (int32_t i = warp; i < num_selected; i += kScoringWarps) {
        const int64_t first = int64_t{selected[i]} * kScoringTile;
        for (int column = lane; column < kScoringTile; column += kWarpSize) {
          const int64_t v = first + column;
          if (v >= args.vocabulary_size || OrderedBits(row[v]) < lowest_max) continue;
          take(LogitKey(row[v], static_cast<int32_t>(v)));
        }
      }
    };
    const uint64_t threshold = SelectLargest<64>(k, visit);
    visit([&](uint64_t key) {
      if (key >= threshold) top[atomicAdd(&num_top, 1)] = key;
    });
    __syncthreads();
    const int32_t power = NextPowerOfTwo(k);
    for (int32_t j = k + thread; j < power; j += kScoringThreads) top[j] = 0;
    SortFalling<kScoringThreads>(top, power);
    for (int32_t j = thread; j < k; j += kScoringThreads) {
      const int32_t id = IdOfKey(top[j]);
      out.ids_Nk[n * k + j] = id;
      out.log_probs_Nk[n * k + j] = row[id];
      row[id] = NegativeInfinity<float>();
    }
    __syncthreads();
    for (int32_t i = warp; i < num_selected; i += kScoringWarps) {
      const int32_t tile = selected[i];
      const int64_t column = int64_t{tile} * kScoringTile + lane * 4;
      const TileSums sums = SumTile(LoadFour(row, column, args.vocabulary_size), args.scale);
      if (lane == 0) tiles[tile] = sums;
    }
    __syncthreads();
  }

  const ComplementSums rest =
      CombineTiles(tiles, args.num_tiles, args.scale, scratch, wide_scratch);
  const double tail =
      rest.sum == 0 ? NegativeInfinity<double>() : rest.reference * args.scale + log(rest.sum);
  // The top-k's own log-sum-exp; the first is the largest (or NaN, which it then is).
  const double scale = args.scale;
  double log_support = NegativeInfinity<double>();
  if (k > 0) {
    const double high = out.log_probs_Nk[n * k] * scale;
    double sum = 0;
    for (int32_t j = thread; j < k; j += kScoringThreads) {
      const double logit = out.log_probs_Nk[n * k + j] * scale;
      sum += logit == NegativeInfinity<double>() ? 0.0 : exp(logit - high);
    }
    sum = BlockReduce<kScoringThreads>(sum, wide_scratch, SumOf());
    log_support = sum == 0 ? NegativeInfinity<double>() : high + log(sum);
  }
  const double log_sum_exp = LogAddExp(tail, log_support);
  double support_entropy = 0;
  for (int32_t j = thread; j < k; j += kScoringThreads) {
    const double log_p = out.log_probs_Nk[n * k + j] * scale - log_sum_exp;
    out.log_probs_Nk[n * k + j] = static_cast<float>(log_p);
    if (log_p != NegativeInfinity<double>()) support_entropy -= exp(log_p) * log_p;
  }
  support_entropy = BlockReduce<kScoringThreads>(support_entropy, wide_scratch, SumOf());
  for (int32_t j = thread; j < args.num_candidates; j += kScoringThreads) {
    float* value = out.candidate_log_probs_NM + n * args.num_candidates + j;
    *value = static_cast<float>(*value * scale - log_sum_exp);
  }
  if (thread != 0) return;
  out.log_tail_N[n] = static_cast<float>(tail - log_sum_exp);
  out.log_support_mass_N[n] = static_cast<float>(log_support - log_sum_exp);
  out.log_sum_exp_N[n] = static_cast<float>(log_sum_exp);
  if (args.sampled_ids != nullptr) {
    out.sampled_log_probs_N[n] = static_cast<float>(sampled_logit * scale - log_sum_exp);
  }
  if (out.entropy_N != nullptr) {
    const double entropy =
        support_entropy + EntropyOfRow(rest, scale, tail - log_sum_exp, log_sum_exp, nullptr, 0);
    out.entropy_N[n] = static_cast<float>(entropy < 0 ? 0 : entropy);
  }
}

}  // namespace taopd::cuda
