#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cuda/attention/partition.h"
#include "kernels/cuda/launch.h"

namespace taopd {
namespace cuda {
namespace {

constexpr int kMergeWarps = 4;

// A block of threads computes a unit: the queries of one tile that share a key-value head, or as
// many of their heads as fit. Numbers of units and blocks fit in 32 bits, as those of a grid must.
struct AttentionArguments {
  PlainPagedAttention p;
  int32_t first_tile = 0;
  int32_t group = 1;          // query heads of a key-value head
  int32_t parts = 1;          // units of one tile and key-value head
  int32_t heads_of_part = 0;  // heads of all parts except the last
  int32_t units_of_tile = 1;
  int32_t window = 0;
  float scale_log2e = 0;
  // The partial results of the split tiles, [partitions of all tiles, units of a tile,
  // max_queries]: a maximum, a sum and D sums of values each.
  float* states = nullptr;
  int32_t max_queries = 0;
  // The places for partitions of every split tile. 0: tiles differ, and first_partition applies.
  int32_t partitions_of_tile = 0;

  __device__ int64_t FirstPartitionOf(int32_t tile) const {
    return partitions_of_tile > 0 ? int64_t{tile} * partitions_of_tile
                                  : p.tiles_I[tile].first_partition;
  }
  // Returns the split tile that has this partition of all: the last that begins at or before it.
  __device__ int32_t TileOfPartition(int32_t partition) const {
    int32_t low = 0, high = static_cast<int32_t>(p.counts.num_split);
    while (high - low > 1) {
      const int32_t middle = (low + high) / 2;
      (p.tiles_I[middle].first_partition <= partition ? low : high) = middle;
    }
    return low;
  }
  __device__ float* StateOf(int32_t tile, int32_t unit, int32_t query, int32_t partition,
                            int32_t head_size) const {
    const int64_t place = (FirstPartitionOf(tile) + partition) * units_of_tile + unit;
    return states + (place * max_queries + query) * (head_size + 2);
  }
};

// Describes a unit of a tile.
__device__ inline TileView ViewOf(const AttentionArguments& args, int32_t tile, int32_t unit) {
  TileView view;
  view.tile = args.p.tiles_I[args.first_tile + tile];
  view.kv_head = unit / args.parts;
  const int32_t first = unit % args.parts * args.heads_of_part;
  view.first_head = view.kv_head * args.group + first;
  view.heads = args.group - first < args.heads_of_part ? args.group - first : args.heads_of_part;
  view.num_queries = view.tile.num_rows * view.heads;
  view.window = args.window;
  view.block_table = args.p.block_tables_SM + view.tile.sequence * args.p.max_blocks;
  return view;
}

__device__ inline int32_t FirstPartition(const TileView& view) {
  return view.FirstKey() / kPartition;
}
__device__ inline int32_t EndPartition(const TileView& view) {
  return (view.EndKey() - 1) / kPartition + 1;
}

template <typename Element>
__device__ Element* OutputOf(const AttentionArguments& args, const TileView& view, int32_t query,
                             int32_t head_size) {
  return static_cast<Element*>(args.p.out_TND) +
         (view.tile.first_row + query / view.heads) * args.p.out_row_stride +
         (view.first_head + query % view.heads) * head_size;
}

// Computes the weights of one partition and the thread's part of the weighted values.
template <typename Element, int kQueries, typename Shared>
__device__ void Attend(const AttentionArguments& args, const TileView& view, int32_t partition,
                       int32_t head_size, Shared* shared, float (*sums)[2]) {
  const PlainPages& pages = args.p.pages;
  const auto num_kv_heads = static_cast<int32_t>(pages.num_kv_heads);
  __syncthreads();  // all threads have read what the previous partition left in shared memory
  LoadBlocks(view, partition, shared);
  __syncthreads();
  ScoreKeys<Element, kQueries>(view, static_cast<const Element*>(pages.keys_BKPD), num_kv_heads,
                               head_size, partition, shared);
  __syncthreads();
  WeighKeys(view, shared);
  __syncthreads();
  SumValues<Element, kQueries>(view, static_cast<const Element*>(pages.values_BKPD), num_kv_heads,
                               head_size, partition, *shared, sums);
}

// With a head size that the compiler knows, indices are constants.
template <int kHeadSize, bool kIsExact>
__device__ int32_t HeadSizeOf(const AttentionArguments& args) {
  return kIsExact ? kHeadSize : static_cast<int32_t>(args.p.pages.head_size);
}

// A unit has one block of threads per partition or, if `stride` is not 0, `stride` blocks, each of
// which takes every stride-th partition.
// The launch bounds ask for 1, 4 or 3 blocks per multiprocessor. With more than one, the general
// kernel would spill registers; the other kernels hide the latency of their loads that way.
template <typename Element, int kQueries, int kHeadSize, bool kIsExact>
__global__ void __launch_bounds__(kAttentionThreads, !kIsExact       ? 1
                                                     : kQueries <= 4 ? 4
                                                                     : 3)
    SplitAttentionKernel(AttentionArguments args, int32_t stride) {
  const auto head_size = HeadSizeOf<kHeadSize, kIsExact>(args);
  const auto place = static_cast<int32_t>(blockIdx.x) / args.units_of_tile;
  const auto unit = static_cast<int32_t>(blockIdx.x) % args.units_of_tile;
  const int32_t tile = stride > 0 ? place / stride : args.TileOfPartition(place);
  const TileView view = ViewOf(args, tile, unit);
  const int32_t begin = FirstPartition(view), num_partitions = EndPartition(view) - begin;
  int32_t index =
      stride > 0 ? place % stride : place - static_cast<int32_t>(args.FirstPartitionOf(tile));
  if (index >= num_partitions) return;
  __shared__ AttentionShared<kQueries, kHeadSize> shared;
  LoadQueries(view, static_cast<const Element*>(args.p.q_TND), args.p.q_row_stride, head_size,
              args.scale_log2e, &shared);
  do {
    float sums[kQueries][2];
    Attend<Element, kQueries>(args, view, begin + index, head_size, &shared, sums);
    // MergePartitions would find the same numbers for a single partition.
    const bool is_only = num_partitions == 1;
    const auto thread = static_cast<int32_t>(threadIdx.x);
    if (thread < view.num_queries && !is_only) {
      float* const state = args.StateOf(tile, unit, thread, index, head_size);
      state[0] = shared.max[thread];
      state[1] = shared.sum[thread];
    }
    AddGroups(view, head_size, sums, &shared, [&](int, int32_t query, int32_t column, float sum) {
      if (is_only) {
        Store(sum / shared.sum[query], OutputOf<Element>(args, view, query, head_size) + column);
      } else {
        args.StateOf(tile, unit, query, index, head_size)[2 + column] = sum;
      }
    });
    index += stride;
  } while (stride > 0 && index < num_partitions);
}

// Merges the partitions of each query of the split units, in order. Uses one warp per query.
template <typename Element>
__global__ void MergePartitionsKernel(AttentionArguments args, int32_t num_queries) {
  const int32_t index = static_cast<int32_t>(blockIdx.x) * kMergeWarps +
                        static_cast<int32_t>(threadIdx.x) / kWarpSize;
  if (index >= num_queries) return;
  const int32_t tile_unit = index / args.max_queries, query = index % args.max_queries;
  const int32_t tile = tile_unit / args.units_of_tile, unit = tile_unit % args.units_of_tile;
  const TileView view = ViewOf(args, tile, unit);
  const int32_t num_partitions = EndPartition(view) - FirstPartition(view);
  if (query >= view.num_queries || num_partitions == 1) return;
  const auto head_size = static_cast<int32_t>(args.p.pages.head_size);
  Element* const out = OutputOf<Element>(args, view, query, head_size);
  for (int32_t d = static_cast<int32_t>(threadIdx.x) % kWarpSize; d < head_size; d += kWarpSize) {
    float max = NegativeInfinity<float>(), sum = 0, value = 0;
    for (int32_t i = 0; i < num_partitions; ++i) {
      const float* state = args.StateOf(tile, unit, query, i, head_size);
      float running_factor, factor;
      MergeSums(state[0], state[1], &max, &sum, &running_factor, &factor);
      value = MergeValue(value, running_factor, state[2 + d], factor);
    }
    Store(value / sum, out + d);
  }
}

// Uses one block for all partitions of a unit.
template <typename Element, int kQueries, int kHeadSize, bool kIsExact>
__global__ void __launch_bounds__(kAttentionThreads) WholeAttentionKernel(AttentionArguments args) {
  const auto head_size = HeadSizeOf<kHeadSize, kIsExact>(args);
  const auto block = static_cast<int32_t>(blockIdx.x);
  const TileView view = ViewOf(args, block / args.units_of_tile, block % args.units_of_tile);
  __shared__ AttentionShared<kQueries, kHeadSize> shared;
  LoadQueries(view, static_cast<const Element*>(args.p.q_TND), args.p.q_row_stride, head_size,
              args.scale_log2e, &shared);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread < kQueries) {
    shared.running_max[thread] = NegativeInfinity<float>();
    shared.running_sum[thread] = 0;
  }
  float running[kElementsPerThread<kQueries, kHeadSize>] = {};
  const int32_t last = EndPartition(view) - 1;
  for (int32_t partition = FirstPartition(view); partition <= last; ++partition) {
    float sums[kQueries][2];
    Attend<Element, kQueries>(args, view, partition, head_size, &shared, sums);
    if (thread < view.num_queries) {
      MergeSums(shared.max[thread], shared.sum[thread], &shared.running_max[thread],
                &shared.running_sum[thread], &shared.running_factor[thread],
                &shared.factor[thread]);
    }
    AddGroups(view, head_size, sums, &shared, [&](int i, int32_t query, int32_t column, float sum) {
      running[i] = MergeValue(running[i], shared.running_factor[query], sum, shared.factor[query]);
      if (partition == last) {
        Store(running[i] / shared.running_sum[query],
              OutputOf<Element>(args, view, query, head_size) + column);
      }
    });
  }
}

// Returns the numbers of a problem that determine its workspace and its grids.
AttentionArguments ArgumentsOf(const PlainPagedAttention& p) {
  AttentionArguments args;
  args.p = p;
  const int64_t group = p.num_heads / p.pages.num_kv_heads;
  const int64_t queries = TileQueries(p.pages.head_size);
  args.group = static_cast<int32_t>(group);
  args.heads_of_part = static_cast<int32_t>(std::min(group, queries));
  args.parts = static_cast<int32_t>(CeilDiv(group, queries));
  args.units_of_tile = static_cast<int32_t>(p.pages.num_kv_heads) * args.parts;
  args.window = static_cast<int32_t>(
      std::min<int64_t>(p.sliding_window, std::numeric_limits<int32_t>::max()));
  args.scale_log2e = static_cast<float>(p.scale * 1.4426950408889634);
  args.max_queries = args.heads_of_part * static_cast<int32_t>(p.counts.max_split_rows);
  const int64_t longest = CeilDiv(p.counts.max_split_positions, kPartition);
  if (p.sliding_window > 0) {
    // The number of partitions that the window's positions can touch.
    const int64_t seen = p.sliding_window + p.counts.max_split_rows - 1;
    args.partitions_of_tile = static_cast<int32_t>(std::min(longest, (seen - 1) / kPartition + 2));
  } else if (p.counts.num_partitions == p.counts.num_split * longest) {
    // This holds for LayOutDecodeStep. If its sequences are short, most blocks of threads have no
    // partition, and end sooner without a search for their tile.
    args.partitions_of_tile = static_cast<int32_t>(longest);
  }
  return args;
}

// The partitions of all split tiles.
int64_t NumPartitions(const AttentionArguments& args) {
  return args.partitions_of_tile > 0 ? args.p.counts.num_split * args.partitions_of_tile
                                     : args.p.counts.num_partitions;
}

std::string ArgumentError(const PlainPagedAttention& p, const DeviceContext& context) {
  if (std::string error = PagesError(p.pages, p.num_heads); !error.empty()) return error;
  const PagedTileCounts& counts = p.counts;
  const int64_t group = p.num_heads / p.pages.num_kv_heads;
  const int64_t tile_rows = std::max<int64_t>(TileQueries(p.pages.head_size) / group, 1);
  std::ostringstream problem;
  if (!(p.scale > 0) || !std::isfinite(p.scale)) {
    problem << "scale is " << p.scale << ", must be positive";
  } else if (p.max_split_blocks < 1) {
    problem << "max_split_blocks is " << p.max_split_blocks << ", must be positive";
  } else if (p.sliding_window < 0) {
    problem << "sliding_window is " << p.sliding_window << ", must not be negative";
  } else if (counts.num_split < 0 || counts.num_split > counts.num_tiles ||
             counts.max_split_positions < 0 || counts.max_split_rows > tile_rows ||
             counts.num_partitions < counts.num_split ||
             (counts.num_split > 0 && counts.max_split_rows < 1)) {
    problem << "counts are not PlanPagedTiles' for these heads";
  } else if (counts.num_tiles > 0 && (p.tiles_I == nullptr || p.block_tables_SM == nullptr ||
                                      p.q_TND == nullptr || p.out_TND == nullptr)) {
    problem << "tiles, block_tables, q and out are needed";
  } else if (const int64_t needed = PagedAttentionWorkspaceBytes(p);
             needed > 0 && (context.workspace == nullptr || context.workspace_bytes < needed)) {
    problem << "the workspace has " << context.workspace_bytes << " bytes, " << needed
            << " are needed";
  }
  return problem.str();
}

using SplitKernel = void (*)(AttentionArguments args, int32_t stride);
using WholeKernel = void (*)(AttentionArguments args);

// These return a kernel for bfloat16, a usual head size and the few queries of a decode step, or
// null. It gives the results of the general kernel, and more of its blocks run at the same time.
template <int kHeadSize>
SplitKernel ExactSplitKernel(int32_t num_queries) {
  if (num_queries <= 4) return SplitAttentionKernel<__nv_bfloat16, 4, kHeadSize, true>;
  if (num_queries <= 8) return SplitAttentionKernel<__nv_bfloat16, 8, kHeadSize, true>;
  return nullptr;
}
SplitKernel ExactSplitKernelFor(const AttentionArguments& args) {
  if (args.p.pages.dtype != DataType::kBFloat16) return nullptr;
  if (args.p.pages.head_size == 64) return ExactSplitKernel<64>(args.max_queries);
  if (args.p.pages.head_size == 128) return ExactSplitKernel<128>(args.max_queries);
  return nullptr;
}
WholeKernel ExactWholeKernelFor(const AttentionArguments& args) {
  const bool exact = args.p.pages.dtype == DataType::kBFloat16 && args.p.pages.head_size == 128;
  return exact ? WholeAttentionKernel<__nv_bfloat16, kNarrowTileQueries, 128, true> : nullptr;
}

template <typename Element, int kQueries, int kHeadSize>
std::string RunAttention(AttentionArguments args, const DeviceContext& context) {
  const PagedTileCounts& counts = args.p.counts;
  const int64_t units = args.units_of_tile, num_split = counts.num_split * units;
  int64_t stride = 0, num_blocks = NumPartitions(args) * units;
  if (args.partitions_of_tile > 0 && num_split > 0) {
    stride = std::clamp<int64_t>(args.p.max_split_blocks / num_split, 1, args.partitions_of_tile);
    num_blocks = num_split * stride;
  }
  SplitKernel split = ExactSplitKernelFor(args);
  if (split == nullptr) split = SplitAttentionKernel<Element, kQueries, kHeadSize, false>;
  std::string error = Launch("SplitAttention", split, num_blocks, kAttentionThreads, context.stream,
                             args, static_cast<int32_t>(stride));
  if (!error.empty()) return error;
  const int64_t num_queries = num_split * args.max_queries;
  error =
      Launch("MergePartitions", MergePartitionsKernel<Element>, CeilDiv(num_queries, kMergeWarps),
             kMergeWarps * kWarpSize, context.stream, args, static_cast<int32_t>(num_queries));
  if (!error.empty()) return error;
  args.first_tile = static_cast<int32_t>(counts.num_split);
  WholeKernel whole = ExactWholeKernelFor(args);
  if (whole == nullptr) whole = WholeAttentionKernel<Element, kQueries, kHeadSize, false>;
  return Launch("WholeAttention", whole, (counts.num_tiles - counts.num_split) * units,
                kAttentionThreads, context.stream, args);
}

}  // namespace
}  // namespace cuda

int64_t PagedAttentionWorkspaceBytes(const PlainPagedAttention& problem) {
  const cuda::AttentionArguments args = cuda::ArgumentsOf(problem);
  return cuda::NumPartitions(args) * args.units_of_tile * args.max_queries *
         (problem.pages.head_size + 2) * static_cast<int64_t>(sizeof(float));
}

std::string PagedAttentionCuda(const PlainPagedAttention& p, const DeviceContext& context) {
  using namespace cuda;  // for the names of the shapes
  if (std::string error = ArgumentError(p, context); !error.empty()) return error;
  AttentionArguments args = ArgumentsOf(p);
  args.states = static_cast<float*>(context.workspace);
  if (p.pages.head_size <= kWideHeadSize) {
    const auto run = p.pages.dtype == DataType::kFloat32
                         ? RunAttention<float, kNarrowTileQueries, kWideHeadSize>
                         : RunAttention<__nv_bfloat16, kNarrowTileQueries, kWideHeadSize>;
    return run(args, context);
  }
  constexpr int kMaxSize = static_cast<int>(kMaxHeadSize);
  const auto run = p.pages.dtype == DataType::kFloat32
                       ? RunAttention<float, kWideTileQueries, kMaxSize>
                       : RunAttention<__nv_bfloat16, kWideTileQueries, kMaxSize>;
  return run(args, context);
}

}  // namespace taopd
