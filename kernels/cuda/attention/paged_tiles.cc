#include <algorithm>

#include "kernels/cuda/attention/plain_pages.h"

namespace taopd {

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
  return plan;
}

}  // namespace taopd
