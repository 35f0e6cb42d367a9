// Sums over the tiles of a row of logits, for taopd/head/fused_scoring.h.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/block.h"
#include "taopd/head/complement_sums.h"
#include "taopd/head/fused_scoring.h"
#include "taopd/objective/log_math.h"

namespace taopd::cuda {

inline constexpr int kScoringThreads = 512;
inline constexpr int kScoringWarps = kScoringThreads / kWarpSize;
static_assert(kScoringTile == 4 * kWarpSize);  // four columns per lane

// The sums of one tile of columns.
struct TileSums {
  float max = 0;    // m
  float sum = 0;    // sum of e = exp((z - m) scale)
  float sum_x = 0;  // sum of e (z - m) scale
};

// Returns the sums of one tile, in every lane of a warp. z holds the calling lane's four columns.
__device__ inline TileSums SumTile(const Float4& z, float scale) {
  float high = NegativeInfinity<float>();
  for (int i = 0; i < 4; ++i) high = MaxOf()(high, z.x[i]);
  high = WarpReduce(high, MaxOf());
  const float shift = high == NegativeInfinity<float>() ? 0.0f : high;
  TileSums tile{high, 0, 0};
  for (int i = 0; i < 4; ++i) {
    const float x = (z.x[i] - shift) * scale;
    const float e = expf(x);
    tile.sum += e;
    tile.sum_x += e > 0 ? e * x : 0.0f;  // avoids 0 * -inf
  }
  tile.sum = WarpSum(tile.sum);
  tile.sum_x = WarpSum(tile.sum_x);
  return tile;
}

// Returns the sums over a whole row from those of its tiles. Every thread of the block calls it and
// gets the same result. `scratch` and `wide_scratch` have kScoringThreads elements of shared memory
// each.
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

}  // namespace taopd::cuda
