#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cuda/attention/plain_pages.h"
#include "taopd/base/round_up.h"

namespace taopd {
namespace {

constexpr size_t kTileNumbers = 5;
static_assert(sizeof(PagedTile) == kTileNumbers * sizeof(int32_t));

// Numbers the partitions of the split tiles; tile i has num_partitions(tile).
template <typename NumPartitions>
void CountPartitions(PagedTiles* plan, const NumPartitions& num_partitions) {
  int64_t sum = 0;
  for (int64_t i = 0; i < plan->counts.num_split; ++i) {
    PagedTile& tile = plan->tiles_I[static_cast<size_t>(i)];
    tile.first_partition = static_cast<int32_t>(sum);
    sum += num_partitions(tile);
  }
  plan->counts.num_partitions = sum;
}

int64_t PartitionsOf(int64_t num_positions) { return CeilDiv(num_positions, kPartitionTokens); }

int64_t NumBlocks(const PagedSequence& sequence) {
  return KvBlocksFor(sequence.past_len + sequence.num_rows);
}

PagedStep LayOut(const std::vector<PagedSequence>& sequences, int64_t max_blocks, PagedTiles plan) {
  PagedStep step;
  step.max_blocks = max_blocks;
  std::vector<int32_t>& arrays = step.arrays;
  std::vector<int32_t> lines;
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (int64_t i = 0; i < sequences[s].num_rows; ++i) {
      arrays.push_back(static_cast<int32_t>(sequences[s].past_len + i));
      lines.push_back(static_cast<int32_t>(s));
    }
  }
  step.num_rows = step.first_sequence = static_cast<int64_t>(arrays.size());
  arrays.insert(arrays.end(), lines.begin(), lines.end());
  step.first_table = static_cast<int64_t>(arrays.size());
  for (const PagedSequence& sequence : sequences) {
    const int64_t num = NumBlocks(sequence);
    arrays.insert(arrays.end(), sequence.block_table, sequence.block_table + num);
    arrays.resize(arrays.size() + static_cast<size_t>(max_blocks - num));  // padding; not read
  }
  step.counts = plan.counts;
  step.first_tile = static_cast<int64_t>(arrays.size());
  arrays.resize(arrays.size() + kTileNumbers * plan.tiles_I.size());
  if (!plan.tiles_I.empty()) {
    std::memcpy(&arrays[static_cast<size_t>(step.first_tile)], plan.tiles_I.data(),
                plan.tiles_I.size() * sizeof(PagedTile));
  }
  return step;
}

}  // namespace

PagedTiles PlanPagedTiles(const PagedSequence* sequences, int64_t num_sequences, int64_t num_heads,
                          int64_t num_kv_heads, int64_t head_size) {
  const int64_t group = num_heads / num_kv_heads;
  const int64_t tile_rows = std::max<int64_t>(cuda::TileQueries(head_size) / group, 1);
  PagedTiles plan;
  std::vector<PagedTile> whole;
  for (int64_t s = 0; s < num_sequences; ++s) {
    const PagedSequence& sequence = sequences[s];
    const auto tile = [&](int64_t first, int64_t num) {
      return PagedTile{static_cast<int32_t>(s), static_cast<int32_t>(sequence.first_row + first),
                       static_cast<int32_t>(num), static_cast<int32_t>(sequence.past_len + first)};
    };
    if (sequence.num_rows > 0 && sequence.num_rows <= tile_rows) {
      plan.tiles_I.push_back(tile(0, sequence.num_rows));
      plan.counts.max_split_rows = std::max(plan.counts.max_split_rows, sequence.num_rows);
      plan.counts.max_split_positions =
          std::max(plan.counts.max_split_positions, sequence.past_len + sequence.num_rows);
      continue;
    }
    for (int64_t row = 0; row < sequence.num_rows; row += tile_rows) {
      whole.push_back(tile(row, std::min(tile_rows, sequence.num_rows - row)));
    }
  }
  plan.counts.num_split = static_cast<int64_t>(plan.tiles_I.size());
  // Later rows see more keys. They start first, so that the last blocks of threads are short.
  std::stable_sort(whole.begin(), whole.end(), [](const PagedTile& a, const PagedTile& b) {
    return a.first_position > b.first_position;
  });
  plan.tiles_I.insert(plan.tiles_I.end(), whole.begin(), whole.end());
  plan.counts.num_tiles = static_cast<int64_t>(plan.tiles_I.size());
  CountPartitions(&plan, [](const PagedTile& tile) {
    return PartitionsOf(int64_t{tile.first_position} + tile.num_rows);
  });
  return plan;
}

PagedStep LayOutPagedStep(const std::vector<PagedSequence>& sequences, int64_t num_heads,
                          int64_t num_kv_heads, int64_t head_size,
                          bool (*without_tiles)(const PagedSequence& sequence)) {
  int64_t max_blocks = 1;
  std::vector<PagedSequence> tiled = sequences;
  for (PagedSequence& sequence : tiled) {
    max_blocks = std::max(max_blocks, NumBlocks(sequence));
    if (without_tiles != nullptr && without_tiles(sequence)) sequence.num_rows = 0;
  }
  return LayOut(sequences, max_blocks,
                PlanPagedTiles(tiled.data(), static_cast<int64_t>(tiled.size()), num_heads,
                               num_kv_heads, head_size));
}

PagedStep LayOutDecodeStep(const std::vector<PagedSequence>& sequences, int64_t max_len,
                           int64_t num_heads, int64_t num_kv_heads, int64_t head_size) {
  PagedTiles plan = PlanPagedTiles(sequences.data(), static_cast<int64_t>(sequences.size()),
                                   num_heads, num_kv_heads, head_size);
  plan.counts.max_split_positions = max_len;
  CountPartitions(&plan, [&](const PagedTile&) { return PartitionsOf(max_len); });
  return LayOut(sequences, KvBlocksFor(max_len), std::move(plan));
}

}  // namespace taopd
