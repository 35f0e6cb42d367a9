#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cuda/attention/partition.h"
#include "kernels/cuda/launch.h"

namespace taopd {
namespace cuda {
namespace {

constexpr int kMergeThreads = 128;

// A block of threads computes a unit: the queries of one tile that share a key-value head, or as
// many of their heads as fit.
struct AttentionArguments {
  PlainPagedAttention p;
  int64_t first_tile = 0;
  int32_t parts = 1;          // units of one tile and key-value head
  int32_t heads_of_part = 0;  // heads of all parts except the last
  int32_t window = 0;
  float scale_log2e = 0;
  // The partial results of the split tiles, [partitions of all tiles, units of a tile,
  // max_queries]: a maximum, a sum and D sums of values each.
  float* states = nullptr;
  int64_t max_queries = 0;
  // The room of every tile, in partitions. 0: they differ, and the tiles say where theirs begin.
  int64_t partitions_of_tile = 0;

  __host__ __device__ int64_t UnitsOfTile() const { return p.pages.num_kv_heads * parts; }
  __device__ int64_t FirstPartitionOf(int64_t tile) const {
    return partitions_of_tile > 0 ? tile * partitions_of_tile : p.tiles_I[tile].first_partition;
  }
  // Returns the split tile that has this partition of all: the last that begins at or before it.
  __device__ int64_t TileOfPartition(int64_t partition) const {
    if (partitions_of_tile > 0) return partition / partitions_of_tile;
    int64_t low = 0, high = p.counts.num_split;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (p.tiles_I[middle].first_partition <= partition ? low : high) = middle;
    }
    return low;
  }
  __device__ float* StateOf(int64_t unit, int64_t query, int64_t partition) const {
    const int64_t place = (FirstPartitionOf(unit / UnitsOfTile()) + partition) * UnitsOfTile();
    return states +
           ((place + unit % UnitsOfTile()) * max_queries + query) * (p.pages.head_size + 2);
  }
};

__device__ inline TileView ViewOf(const AttentionArguments& args, int64_t unit) {
  const int64_t K = args.p.pages.num_kv_heads, group = args.p.num_heads / K;
  const int64_t part = unit % args.parts;
  TileView view;
  view.tile = args.p.tiles_I[args.first_tile + unit / args.parts / K];
  view.kv_head = unit / args.parts % K;
  const int64_t first = part * args.heads_of_part;
  view.first_head = view.kv_head * group + first;
  view.heads =
      static_cast<int32_t>(group - first < args.heads_of_part ? group - first : args.heads_of_part);
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
__device__ Element* OutputOf(const AttentionArguments& args, const TileView& view, int32_t query) {
  return static_cast<Element*>(args.p.out_TND) +
         (view.tile.first_row + query / view.heads) * args.p.out_row_stride +
         (view.first_head + query % view.heads) * args.p.pages.head_size;
}

// Computes the weights of one partition and the thread's part of the weighted values.
template <typename Element, int kQueries, typename Shared>
__device__ void Attend(const AttentionArguments& args, const TileView& view, int32_t partition,
                       Shared* shared, float (*sums)[2]) {
  const PlainPages& pages = args.p.pages;
  const auto head_size = static_cast<int32_t>(pages.head_size);
  __syncthreads();  // all threads have read what the previous partition left in shared memory
  LoadBlocks(view, partition, shared);
  __syncthreads();
  ScoreKeys<Element, kQueries>(view, static_cast<const Element*>(pages.keys_BKPD),
                               pages.num_kv_heads, head_size, partition, shared);
  __syncthreads();
  WeighKeys(view, shared);
  __syncthreads();
  SumValues<Element, kQueries>(view, static_cast<const Element*>(pages.values_BKPD),
                               pages.num_kv_heads, head_size, partition, *shared, sums);
}

// Uses one block per partition of a unit.
template <typename Element, int kQueries, int kHeadSize>
__global__ void __launch_bounds__(kAttentionThreads) SplitAttentionKernel(AttentionArguments args) {
  const int64_t of_all = blockIdx.x / args.UnitsOfTile();
  const int64_t tile = args.TileOfPartition(of_all);
  const int64_t index = of_all - args.FirstPartitionOf(tile);
  const int64_t unit = tile * args.UnitsOfTile() + blockIdx.x % args.UnitsOfTile();
  const TileView view = ViewOf(args, unit);
  const int32_t partition = FirstPartition(view) + static_cast<int32_t>(index);
  if (partition >= EndPartition(view)) return;
  __shared__ AttentionShared<kQueries, kHeadSize> shared;
  const auto head_size = static_cast<int32_t>(args.p.pages.head_size);
  LoadQueries(view, static_cast<const Element*>(args.p.q_TND), args.p.q_row_stride, head_size,
              args.scale_log2e, &shared);
  float sums[kQueries][2];
  Attend<Element, kQueries>(args, view, partition, &shared, sums);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread < view.num_queries) {
    float* const state = args.StateOf(unit, thread, index);
    state[0] = shared.max[thread];
    state[1] = shared.sum[thread];
  }
  AddGroups(view, head_size, sums, &shared, [&](int, int32_t query, int32_t column, float sum) {
    args.StateOf(unit, query, index)[2 + column] = sum;
  });
}

// Uses one block per query of a split unit, which merges its partitions in order.
template <typename Element>
__global__ void MergePartitionsKernel(AttentionArguments args) {
  const int64_t unit = blockIdx.x / args.max_queries;
  const auto query = static_cast<int32_t>(blockIdx.x % args.max_queries);
  const TileView view = ViewOf(args, unit);
  if (query >= view.num_queries) return;
  const int32_t num_partitions = EndPartition(view) - FirstPartition(view);
  Element* const out = OutputOf<Element>(args, view, query);
  for (int64_t d = threadIdx.x; d < args.p.pages.head_size; d += kMergeThreads) {
    float max = NegativeInfinity<float>(), sum = 0, value = 0;
    for (int32_t i = 0; i < num_partitions; ++i) {
      const float* state = args.StateOf(unit, query, i);
      float running_factor, factor;
      MergeSums(state[0], state[1], &max, &sum, &running_factor, &factor);
      value = MergeValue(value, running_factor, state[2 + d], factor);
    }
    Store(value / sum, out + d);
  }
}

// Uses one block for all partitions of a unit.
template <typename Element, int kQueries, int kHeadSize>
__global__ void __launch_bounds__(kAttentionThreads) WholeAttentionKernel(AttentionArguments args) {
  const TileView view = ViewOf(args, blockIdx.x);
  __shared__ AttentionShared<kQueries, kHeadSize> shared;
  const auto head_size = static_cast<int32_t>(args.p.pages.head_size);
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
    Attend<Element, kQueries>(args, view, partition, &shared, sums);
    if (thread < view.num_queries) {
      MergeSums(shared.max[thread], shared.sum[thread], &shared.running_max[thread],
                &shared.running_sum[thread], &shared.running_factor[thread],
                &shared.factor[thread]);
    }
    AddGroups(view, head_size, sums, &shared, [&](int i, int32_t query, int32_t column, float sum) {
      running[i] = MergeValue(running[i], shared.running_factor[query], sum, shared.factor[query]);
      if (partition == last) {
        Store(running[i] / shared.running_sum[query],
              OutputOf<Element>(args, view, query) + column);
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
  args.heads_of_part = static_cast<int32_t>(std::min(group, queries));
  args.parts = static_cast<int32_t>(CeilDiv(group, queries));
  args.window = static_cast<int32_t>(
      std::min<int64_t>(p.sliding_window, std::numeric_limits<int32_t>::max()));
  args.scale_log2e = static_cast<float>(p.scale * 1.4426950408889634);
  args.max_queries = args.heads_of_part * p.counts.max_split_rows;
  const int64_t longest = CeilDiv(p.counts.max_split_positions, kPartition);
  if (p.sliding_window > 0) {
    // The number of partitions that the window's positions can touch.
    const int64_t seen = p.sliding_window + p.counts.max_split_rows - 1;
    args.partitions_of_tile = std::min(longest, (seen - 1) / kPartition + 2);
  } else if (p.counts.num_partitions == p.counts.num_split * longest) {
    // So it is in LayOutDecodeStep, where most blocks of threads end at once if the sequences are
    // short: they end sooner without a search for their tile.
    args.partitions_of_tile = longest;
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

template <typename Element, int kQueries, int kHeadSize>
std::string RunAttention(AttentionArguments args, const DeviceContext& context) {
  const PagedTileCounts& counts = args.p.counts;
  const int64_t units = args.UnitsOfTile();
  std::string error = Launch("SplitAttention", SplitAttentionKernel<Element, kQueries, kHeadSize>,
                             NumPartitions(args) * units, kAttentionThreads, context.stream, args);
  if (!error.empty()) return error;
  error = Launch("MergePartitions", MergePartitionsKernel<Element>,
                 counts.num_split * units * args.max_queries, kMergeThreads, context.stream, args);
  if (!error.empty()) return error;
  args.first_tile = counts.num_split;
  return Launch("WholeAttention", WholeAttentionKernel<Element, kQueries, kHeadSize>,
                (counts.num_tiles - counts.num_split) * units, kAttentionThreads, context.stream,
                args);
}

}  // namespace
}  // namespace cuda

int64_t PagedAttentionWorkspaceBytes(const PlainPagedAttention& problem) {
  const cuda::AttentionArguments args = cuda::ArgumentsOf(problem);
  return cuda::NumPartitions(args) * args.UnitsOfTile() * args.max_queries *
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
