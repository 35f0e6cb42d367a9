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
// them loads at a time. With kLanesPerKey threads per key, a block of threads reads one page at a
// time.
inline constexpr int kLanesPerKey = 8;
inline constexpr int kChunk = 8;
// The number of values that a thread loads before it uses the first, so that it waits for memory
// once.
inline constexpr int kValuesAtOnce = 8;
static_assert(kAttentionThreads == kLanesPerKey * kBlockTokens);

// The keys that the queries of a tile see. Query q is head first_head + q % heads of row q / heads.
struct TileView {
  PagedTile tile;
  int32_t kv_head = 0;
  int32_t first_head = 0;
  int32_t heads = 0;
  int32_t num_queries = 0;
  int32_t window = 0;  // 0: none
  const int32_t* block_table = nullptr;

  __device__ int32_t PositionOf(int32_t query) const { return tile.first_position + query / heads; }
  __device__ bool Sees(int32_t query, int32_t key) const {
    const int32_t position = PositionOf(query);
    return key <= position && (window == 0 || key > position - window);
  }
  // Whether every query sees every key of [FirstKey, EndKey).
  __device__ bool AllSeeAll() const { return tile.num_rows == 1; }
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

template <typename Element>
struct alignas(16) Chunk {
  Element x[kChunk];
};
template <typename Element>
struct alignas(2 * sizeof(Element)) Pair {
  Element x[2];
};

// Returns elements d to d + 7 of a key, with zeros from head_size on.
template <typename Element>
__device__ Chunk<Element> LoadChunk(const Element* key, int32_t d, int32_t head_size) {
  if (head_size % kChunk == 0) return *reinterpret_cast<const Chunk<Element>*>(key + d);
  Chunk<Element> chunk;
  for (int i = 0; i < kChunk; ++i) {
    Store(d + i < head_size ? Load(key + d + i) : 0.0f, &chunk.x[i]);
  }
  return chunk;
}

// Writes the queries times `scale` to shared memory, followed by zeros.
template <typename Element, typename Shared>
__device__ void LoadQueries(const TileView& view, const Element* q_TND, int64_t row_stride,
                            int32_t head_size, float scale, Shared* shared) {
  const auto padded_size = static_cast<int32_t>(RoundUp(head_size, kChunk));
  const int32_t num = view.num_queries * padded_size;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < num; i += kAttentionThreads) {
    const int32_t query = i / padded_size, d = i % padded_size;
    const Element* from = q_TND + (view.tile.first_row + query / view.heads) * row_stride +
                          (view.first_head + query % view.heads) * head_size;
    shared->queries[query][d] = d < head_size ? Load(from + d) * scale : 0.0f;
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

// Adds the calling thread's products of queries and keys, some of which may be null, to `dots`.
template <typename Element, int kPages, int kQueries, typename Shared>
__device__ __forceinline__ void AddDots(const TileView& view, const Element* const (&keys)[kPages],
                                        int32_t head_size, int32_t lane, const Shared& shared,
                                        float (&dots)[kPages][kQueries]) {
  for (int32_t d = lane * kChunk; d < head_size; d += kLanesPerKey * kChunk) {
    Chunk<Element> chunks[kPages];
#pragma unroll
    for (int page = 0; page < kPages; ++page) {
      chunks[page] = keys[page] != nullptr ? LoadChunk(keys[page], d, head_size) : Chunk<Element>{};
    }
    for (int query = 0; query < kQueries; ++query) {
      if (query >= view.num_queries) break;
#pragma unroll
      for (int page = 0; page < kPages; ++page) {
        for (int i = 0; i < kChunk; ++i) {
          // Shared memory is as wide as the chunks; it is 0 from D on.
          dots[page][query] =
              fmaf(shared.queries[query][d + i], Load(&chunks[page].x[i]), dots[page][query]);
        }
      }
    }
  }
}

// Computes the scores of the partition's keys: -inf where a query does not see a key.
template <typename Element, int kQueries, typename Shared>
__device__ void ScoreKeys(const TileView& view, const Element* keys_BKPD, int32_t num_kv_heads,
                          int32_t head_size, int32_t partition, Shared* shared) {
  // The number of keys that a thread loads before it uses the first.
  constexpr int kPages = kQueries <= 8 ? 2 : 1;
  static_assert(kPagesOfPartition % kPages == 0);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t place = thread / kLanesPerKey, lane = thread % kLanesPerKey;
  for (int first_page = 0; first_page < kPagesOfPartition; first_page += kPages) {
    const Element* keys[kPages];  // null: no query sees it
#pragma unroll
    for (int page = 0; page < kPages; ++page) {
      const int64_t block = shared->blocks[first_page + page];
      const int32_t position =
          partition * kPartition + (first_page + page) * static_cast<int32_t>(kBlockTokens) + place;
      const bool seen = position >= view.FirstKey() && position < view.EndKey();
      keys[page] =
          seen ? keys_BKPD +
                     ((block * num_kv_heads + view.kv_head) * kBlockTokens + place) * head_size
               : nullptr;
    }
    float dots[kPages][kQueries] = {};
    AddDots(view, keys, head_size, lane, *shared, dots);
#pragma unroll
    for (int page = 0; page < kPages; ++page) {
      const int32_t in_partition = (first_page + page) * static_cast<int32_t>(kBlockTokens) + place;
      // All threads evaluate this condition alike: a page that no query sees has no block.
      const bool used = shared->blocks[first_page + page] >= 0;
      for (int query = 0; query < kQueries; ++query) {
        if (query >= view.num_queries) break;
        float score = dots[page][query];
        if (used) score = WarpReduce<kLanesPerKey>(score, SumOf());
        if (lane == 0) {
          const bool sees =
              keys[page] != nullptr &&
              (view.AllSeeAll() || view.Sees(query, partition * kPartition + in_partition));
          shared->weights[query][in_partition] = sees ? score : NegativeInfinity<float>();
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
    high = WarpReduce(high, MaxOf());
    const float shift = high == NegativeInfinity<float>() ? 0.0f : high;
    float sum = 0;
    for (int i = 0; i < kPerLane; ++i) {
      const float weight = exp2f(score[i] - shift);
      weights[i * kWarpSize + lane] = weight;
      sum += weight;
    }
    sum = WarpSum(sum);
    if (lane == 0) {
      shared->max[query] = high;
      shared->sum[query] = sum;
    }
  }
}

// Each pair of columns is assigned to a thread. The remaining threads form further groups, and the
// groups take the keys of a page in turn.
__device__ inline int32_t NumGroups(int32_t head_size) {
  return kAttentionThreads / (head_size / 2);
}

// Sums the weighted values of a thread's two columns over every NumGroups-th key of each page.
template <typename Element, int kQueries, typename Shared>
__device__ void SumValues(const TileView& view, const Element* values_BKPD, int32_t num_kv_heads,
                          int32_t head_size, int32_t partition, const Shared& shared,
                          float (*sums)[2]) {
  constexpr int32_t kPage = static_cast<int32_t>(kBlockTokens);
  const int32_t pairs = head_size / 2, groups = NumGroups(head_size);
  const int32_t pair = static_cast<int32_t>(threadIdx.x) % pairs;
  const int32_t group = static_cast<int32_t>(threadIdx.x) / pairs;
  for (int query = 0; query < kQueries; ++query) sums[query][0] = sums[query][1] = 0;
  if (group >= groups) return;
  for (int32_t page = 0; page < kPagesOfPartition; ++page) {
    const int64_t block = shared.blocks[page];
    if (block < 0) continue;
    const Element* values =
        values_BKPD + (block * num_kv_heads + view.kv_head) * kPage * head_size + 2 * pair;
    const int32_t start = partition * kPartition + page * kPage;
    const int32_t first = view.FirstKey() - start;
    const int32_t end = view.EndKey() - start < kPage ? view.EndKey() - start : kPage;
    for (int32_t j = group; j < end; j += kValuesAtOnce * groups) {
      Pair<Element> stored[kValuesAtOnce];
#pragma unroll
      for (int i = 0; i < kValuesAtOnce; ++i) {
        const int32_t key = j + i * groups;
        if (key >= first && key < end) {
          stored[i] = *reinterpret_cast<const Pair<Element>*>(values + key * head_size);
        }
      }
#pragma unroll
      for (int i = 0; i < kValuesAtOnce; ++i) {
        const int32_t key = j + i * groups;
        if (key < first || key >= end) continue;
        const float x = Load(&stored[i].x[0]), y = Load(&stored[i].x[1]);
        // Zero times infinity is NaN: values that are not finite count only for the queries that
        // see them.
        const bool counts = view.AllSeeAll() || (x - x == 0 && y - y == 0);
        for (int query = 0; query < kQueries; ++query) {
          if (query >= view.num_queries) break;
          if (counts || view.Sees(query, start + key)) {
            const float weight = shared.weights[query][page * kPage + key];
            sums[query][0] = fmaf(weight, x, sums[query][0]);
            sums[query][1] = fmaf(weight, y, sums[query][1]);
          }
        }
      }
    }
  }
}

// The elements [queries, D] of a tile are distributed over the threads; each has at most this many.
template <int kQueries, int kHeadSize>
inline constexpr int kElementsPerThread =
    (kQueries * kHeadSize + kAttentionThreads - 1) / kAttentionThreads;

// Adds up the groups' sums and calls take(i, query, column, sum) for the calling thread's elements;
// i < kElementsPerThread is the same for the same element in every call. Overwrites the weights.
template <int kQueries, int kHeadSize, typename Take>
__device__ void AddGroups(const TileView& view, int32_t head_size, const float (*sums)[2],
                          AttentionShared<kQueries, kHeadSize>* shared, const Take& take) {
  constexpr int kAtOnce = kQueries / 2;  // queries whose groups' sums fit in place of the weights
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
