// One partition of keys and a tile of queries, for paged_attention.cu: the phases that compute the
// partial softmax, in the order in which they run, and the merge of two partial results. Every
// thread of the block calls every phase.
//
// The order of every sum depends only on D, on the storage type and on absolute positions. Keys
// that a query does not see add zeros. Multiply-adds are fused explicitly, so that the compiler
// cannot fuse one of two equal expressions and not the other.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/attention/plain_pages.h"
#include "kernels/cuda/block.h"
#include "taopd/base/round_up.h"

namespace taopd::cuda {

inline constexpr int kAttentionThreads = 256;
inline constexpr int kAttentionWarps = kAttentionThreads / kWarpSize;
inline constexpr int kPartition = static_cast<int>(kPartitionTokens);
inline constexpr int kPagesOfPartition = kPartition / static_cast<int>(kBlockTokens);
// The number of threads that share a key's dot products, and the number of elements that each of
// them takes at once. With kLanesPerKey threads per key, a block of threads reads one page at a
// time.
inline constexpr int kLanesPerKey = 8;
inline constexpr int kChunk = 8;
static_assert(kAttentionThreads == kLanesPerKey * kBlockTokens);

// The keys that the queries of a tile see. Query q is head first_head + q % heads of row q / heads.
struct TileView {
  PagedTile tile;
  int64_t kv_head = 0;
  int64_t first_head = 0;
  int32_t heads = 0;
  int32_t num_queries = 0;
  int32_t window = 0;  // 0: none
  const int32_t* block_table = nullptr;

  __device__ int32_t PositionOf(int32_t query) const { return tile.first_position + query / heads; }
  __device__ bool Sees(int32_t query, int32_t key) const {
    const int32_t position = PositionOf(query);
    return key <= position && (window == 0 || key > position - window);
  }
  // The keys that at least one query sees are [FirstKey, EndKey).
  __device__ int32_t FirstKey() const {
    const int32_t first = tile.first_position - window + 1;
    return window == 0 || first < 0 ? 0 : first;
  }
  __device__ int32_t EndKey() const { return tile.first_position + tile.num_rows; }
};

template <int kQueries, int kHeadSize>
struct AttentionShared {
  float queries[kQueries][kHeadSize];  // multiplied by the scale
  // Holds the scores, then the weights, then the sums of the groups of threads.
  float weights[kQueries][kPartition];
  float max[kQueries], sum[kQueries];  // maximum and sum of this partition
  float running_max[kQueries], running_sum[kQueries];
  float running_factor[kQueries], factor[kQueries];  // factors of the merge
  int32_t blocks[kPagesOfPartition];
};

// Merges the maximum and sum of a partition into the running ones. MergeValue multiplies the other
// sums by the two factors and adds them. A maximum of -inf comes with a sum of 0 (or NaN).
__device__ inline void MergeSums(float max, float sum, float* running_max, float* running_sum,
                                 float* running_factor, float* factor) {
  const float high = MaxOf()(*running_max, max);
  const float shift = high == NegativeInfinity<float>() ? 0.0f : high;
  *running_factor = exp2f(*running_max - shift);
  *factor = exp2f(max - shift);
  *running_sum = fmaf(*running_sum, *running_factor, sum * *factor);
  *running_max = high;
}
__device__ inline float MergeValue(float running, float running_factor, float value, float factor) {
  return fmaf(running, running_factor, value * factor);
}

struct alignas(16) BfloatChunk {
  __nv_bfloat16 x[kChunk];
};
template <typename Element>
struct alignas(2 * sizeof(Element)) Pair {
  Element x[2];
};

__device__ inline void LoadWholeChunk(const float* from, float* to) {
  for (int half = 0; half < 2; ++half) {
    const Float4 four = reinterpret_cast<const Float4*>(from)[half];
    for (int i = 0; i < 4; ++i) to[half * 4 + i] = four.x[i];
  }
}
__device__ inline void LoadWholeChunk(const __nv_bfloat16* from, float* to) {
  const BfloatChunk chunk = *reinterpret_cast<const BfloatChunk*>(from);
  for (int i = 0; i < kChunk; ++i) to[i] = __bfloat162float(chunk.x[i]);
}

// Writes the queries times `scale` to shared memory, followed by zeros.
template <typename Element, typename Shared>
__device__ void LoadQueries(const TileView& view, const Element* q_TND, int64_t row_stride,
                            int32_t head_size, float scale, Shared* shared) {
  const auto padded_size = static_cast<int32_t>(RoundUp(head_size, kChunk));
  for (int32_t query = 0; query < view.num_queries; ++query) {
    const Element* from = q_TND + (view.tile.first_row + query / view.heads) * row_stride +
                          (view.first_head + query % view.heads) * head_size;
    for (int32_t d = static_cast<int32_t>(threadIdx.x); d < padded_size; d += kAttentionThreads) {
      shared->queries[query][d] = d < head_size ? Load(from + d) * scale : 0.0f;
    }
  }
}

// Fills in `blocks` for the pages of the partition that hold a key in [FirstKey, EndKey).
template <typename Shared>
__device__ void LoadBlocks(const TileView& view, int32_t partition, Shared* shared) {
  constexpr int32_t kPage = static_cast<int32_t>(kBlockTokens);
  const auto page = static_cast<int32_t>(threadIdx.x);
  if (page >= kPagesOfPartition) return;
  const int32_t first = partition * kPartition + page * kPage;
  const bool used = first < view.EndKey() && first + kPage > view.FirstKey();
  shared->blocks[page] = used ? view.block_table[first / kPage] : -1;
}

// Computes the dot products of every query with the calling thread's elements of a key.
template <typename Element, int kQueries, typename Shared>
__device__ void DotElements(const TileView& view, const Element* key, int32_t head_size,
                            const Shared& shared, float* dots) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kLanesPerKey;
  const bool whole_chunks = head_size % kChunk == 0;
  for (int32_t d = lane * kChunk; d < head_size; d += kLanesPerKey * kChunk) {
    float chunk[kChunk];
    if (whole_chunks) {
      LoadWholeChunk(key + d, chunk);
    } else {
      for (int i = 0; i < kChunk; ++i) chunk[i] = d + i < head_size ? Load(key + d + i) : 0.0f;
    }
    for (int query = 0; query < kQueries; ++query) {
      if (query < view.num_queries) {
        for (int i = 0; i < kChunk; ++i) {
          // Shared memory is as wide as the chunks; it is 0 from D on.
          dots[query] = fmaf(shared.queries[query][d + i], chunk[i], dots[query]);
        }
      }
    }
  }
}

// Computes the scores of the partition's keys: -inf where a query does not see a key.
template <typename Element, int kQueries, typename Shared>
__device__ void ScoreKeys(const TileView& view, const Element* keys_BKPD, int64_t num_kv_heads,
                          int32_t head_size, int32_t partition, Shared* shared) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t place = thread / kLanesPerKey;
  for (int page = 0; page < kPagesOfPartition; ++page) {
    const int32_t in_partition = page * static_cast<int32_t>(kBlockTokens) + place;
    const int32_t position = partition * kPartition + in_partition;
    const int64_t block = shared->blocks[page];
    float dots[kQueries] = {};
    if (position >= view.FirstKey() && position < view.EndKey()) {
      const Element* key =
          keys_BKPD + ((block * num_kv_heads + view.kv_head) * kBlockTokens + place) * head_size;
      DotElements<Element, kQueries>(view, key, head_size, *shared, dots);
    }
    for (int query = 0; query < kQueries; ++query) {
      if (query < view.num_queries) {
        float score = dots[query];
        // All threads evaluate this condition alike: a page that no query sees has no block.
        for (int mask = kLanesPerKey / 2; mask > 0 && block >= 0; mask /= 2) {
          score += __shfl_xor_sync(0xffffffffu, score, mask);
        }
        if (thread % kLanesPerKey == 0) {
          shared->weights[query][in_partition] =
              view.Sees(query, position) ? score : NegativeInfinity<float>();
        }
      }
    }
  }
}

// Turns scores into weights 2^(score - max), and sets max and sum. Uses one warp per query.
template <typename Shared>
__device__ void WeighKeys(const TileView& view, Shared* shared) {
  constexpr int kPerLane = kPartition / kWarpSize;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % kWarpSize;
  for (int32_t query = thread / kWarpSize; query < view.num_queries; query += kAttentionWarps) {
    float* weights = shared->weights[query];
    float score[kPerLane];
    float high = NegativeInfinity<float>();
    for (int i = 0; i < kPerLane; ++i) {
      score[i] = weights[i * kWarpSize + lane];
      high = MaxOf()(high, score[i]);
    }
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
      high = MaxOf()(high, __shfl_xor_sync(0xffffffffu, high, mask));
    }
    const float shift = high == NegativeInfinity<float>() ? 0.0f : high;
    float sum = 0;
    for (int i = 0; i < kPerLane; ++i) {
      const float weight = exp2f(score[i] - shift);
      weights[i * kWarpSize + lane] = weight;
      sum += weight;
    }
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    }
    if (lane == 0) {
      shared->max[query] = high;
      shared->sum[query] = sum;
    }
  }
}

// Each pair of columns is assigned to a thread. The remaining threads form further groups, and the
// groups take keys in turn.
__device__ inline int32_t NumGroups(int32_t head_size) {
  return kAttentionThreads / (head_size / 2);
}

// Sums the weighted values of a thread's two columns over every NumGroups-th key.
template <typename Element, int kQueries, typename Shared>
__device__ void SumValues(const TileView& view, const Element* values_BKPD, int64_t num_kv_heads,
                          int32_t head_size, int32_t partition, const Shared& shared,
                          float (*sums)[2]) {
  const int32_t pairs = head_size / 2, groups = NumGroups(head_size);
  const int32_t pair = static_cast<int32_t>(threadIdx.x) % pairs;
  const int32_t group = static_cast<int32_t>(threadIdx.x) / pairs;
  for (int query = 0; query < kQueries; ++query) sums[query][0] = sums[query][1] = 0;
  if (group >= groups) return;
  const int32_t start = partition * kPartition;
  for (int32_t j = group; j < kPartition; j += groups) {
    const int32_t position = start + j;
    if (position < view.FirstKey() || position >= view.EndKey()) continue;
    const int64_t block = shared.blocks[j / kBlockTokens];
    const Element* value =
        values_BKPD +
        ((block * num_kv_heads + view.kv_head) * kBlockTokens + j % kBlockTokens) * head_size;
    const Pair<Element> stored = reinterpret_cast<const Pair<Element>*>(value)[pair];
    const float x = Load(&stored.x[0]), y = Load(&stored.x[1]);
    // Zero times infinity is NaN: values that are not finite count only for the queries that see
    // them.
    const bool finite = x - x == 0 && y - y == 0;
    for (int query = 0; query < kQueries; ++query) {
      if (query < view.num_queries && (finite || view.Sees(query, position))) {
        const float weight = shared.weights[query][j];
        sums[query][0] = fmaf(weight, x, sums[query][0]);
        sums[query][1] = fmaf(weight, y, sums[query][1]);
      }
    }
  }
}

// The elements [queries, D] of a tile are distributed over the threads; each has at most this many.
template <int kQueries, int kHeadSize>
inline constexpr int kElementsPerThread = kQueries* kHeadSize / kAttentionThreads;

// Adds up the groups' sums and calls take(i, query, column, sum) for the calling thread's elements;
// i < kElementsPerThread is the same for the same element in every call. Overwrites the weights.
template <int kQueries, int kHeadSize, typename Take>
__device__ void AddGroups(const TileView& view, int32_t head_size, const float (*sums)[2],
                          AttentionShared<kQueries, kHeadSize>* shared, const Take& take) {
  constexpr int kAtOnce = kQueries / 2;  // queries whose groups' sums fit where the weights were
  static_assert(kAtOnce * 2 * kAttentionThreads <= kQueries * kPartition);
  constexpr int kElements = kElementsPerThread<kAtOnce, kHeadSize>;
  float* const place = &shared->weights[0][0];
  const int32_t pairs = head_size / 2, groups = NumGroups(head_size);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t pair = thread % pairs, group = thread / pairs;
  for (int part = 0; part < 2; ++part) {
    __syncthreads();
    for (int i = 0; i < kAtOnce; ++i) {
      if (group < groups) {
        float* const own = place + (group * kAtOnce + i) * head_size + 2 * pair;
        own[0] = sums[part * kAtOnce + i][0];
        own[1] = sums[part * kAtOnce + i][1];
      }
    }
    __syncthreads();
    for (int i = 0; i < kElements; ++i) {
      const int32_t element = i * kAttentionThreads + thread;
      const int32_t query = element / head_size, column = element % head_size;
      if (query < kAtOnce && part * kAtOnce + query < view.num_queries) {
        float sum = 0;
        for (int32_t g = 0; g < groups; ++g) {
          sum += place[(g * kAtOnce + query) * head_size + column];
        }
        take(part * kElements + i, part * kAtOnce + query, column, sum);
      }
    }
  }
}

}  // namespace taopd::cuda
