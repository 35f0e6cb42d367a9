// Causal attention over pages on CUDA. The pages, block tables, rows and partitions are those of
// taopd/attention/paged_attention.h, and so is the guarantee: the bytes of an output row depend
// only on its query, on the keys and values that it sees and on the layer's shape. They do not
// depend on the other rows, on how a prompt is cut into chunks, or on the numbers of the blocks.
// The CPU's bytes differ from these in the last bits.
//
// One step of a model lays out its arrays once (LayOutPagedStep), copies them to the device, and
// then calls for each layer:
//   - RotateAndAppendCuda, which prepares queries and keys and writes keys and values to pages;
//   - PagedAttentionCuda, which computes the attention of the same rows.
//
// Arithmetic is float32 for every storage type. Both functions keep the contract of
// taopd/base/device.h; neither needs cuBLASLt. The contents of a page after a sequence's last row
// are never used, even if they are NaN.
//
// Shapes: T rows (tokens of the batch), S sequences, M entries of a block table, I tiles, N query
// heads, K key-value heads, D head size, B blocks, P = kBlockTokens positions of a block. Query
// heads [k N/K, (k + 1) N/K) use key-value head k. Sizes and strides count elements. All pointers
// are to device memory unless a comment says otherwise.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "taopd/attention/paged_attention.h"
#include "taopd/base/data_type.h"
#include "taopd/base/device.h"

namespace taopd {

// The pages of one layer in the plain layout. The arrays are aligned to 16 bytes and need not be
// initialized.
struct PlainPages {
  DataType dtype = DataType::kFloat32;  // also the type of queries, keys, values and outputs
  int64_t num_kv_heads = 0;             // K
  int64_t head_size = 0;                // D: even, at most kMaxHeadSize
  void* keys_BKPD = nullptr;
  void* values_BKPD = nullptr;
};

// Normalizes and rotates the heads of queries and keys as HeadsForward does
// (taopd/layers/norms_and_swiglu.h, with the same rounding), writes the queries to q_out and the
// keys to their pages, and copies the values to their pages. q, k and v may be parts of the rows of
// one fused product. REQUIRES: no two rows of the batch are the same position of one block.
struct RotateAndAppend {
  PlainPages pages;
  int64_t num_rows = 0;                  // T
  int64_t num_heads = 0;                 // N
  const int32_t* positions_T = nullptr;  // in the row's sequence
  const int32_t* sequences_T = nullptr;  // the row of the block tables that the batch row uses
  const int32_t* block_tables_SM = nullptr;
  int64_t max_blocks = 0;       // M
  const void* q_TND = nullptr;  // null: the queries are ready; q_out is not written
  int64_t q_row_stride = 0;
  const void* k_TKD = nullptr;
  int64_t k_row_stride = 0;
  const void* v_TKD = nullptr;
  int64_t v_row_stride = 0;
  const void* q_norm_D = nullptr;  // null: no norm
  const void* k_norm_D = nullptr;  // null: no norm
  float eps = 0;
  // As in HeadsForward. No rotation if both are null.
  const void* cos_TD = nullptr;
  const void* sin_TD = nullptr;
  void* q_out_TND = nullptr;  // may be q itself
  int64_t q_out_row_stride = 0;
};
std::string RotateAndAppendCuda(const RotateAndAppend& problem, const DeviceContext& context);

// Consecutive rows of one sequence that one block of threads computes together.
struct PagedTile {
  int32_t sequence = 0;  // the row of the block tables
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t first_position = 0;  // position of the first row in its sequence
  // For a split tile: the number of partitions of all tiles before it, as if there were no window.
  int32_t first_partition = 0;
};

// The partitions of a split tile are computed by different blocks of threads and then merged.
// Otherwise a few rows, as in decoding, would not keep a GPU busy. A sequence of few rows is one
// split tile. Splitting does not change results.
struct PagedTileCounts {
  int64_t num_tiles = 0;            // I
  int64_t num_split = 0;            // the split tiles come first
  int64_t max_split_rows = 0;       // the largest number of rows of a split tile
  int64_t max_split_positions = 0;  // last position of a split tile + 1
  int64_t num_partitions = 0;       // of all split tiles
};
struct PagedTiles {
  PagedTileCounts counts;
  std::vector<PagedTile> tiles_I;  // host memory
};
// Plans the tiles. Runs on the host. Sequence i uses row i of the block tables;
// PagedSequence::block_table is not read. REQUIRES: num_heads is a multiple of num_kv_heads;
// positions and rows are below 2^31.
PagedTiles PlanPagedTiles(const PagedSequence* sequences, int64_t num_sequences, int64_t num_heads,
                          int64_t num_kv_heads, int64_t head_size);

// The arrays of one step, stored one after the other so that one copy brings them to the device:
// the positions of the rows, their rows of the block tables, the tables and the tiles.
struct PagedStep {
  std::vector<int32_t> arrays;  // host memory
  int64_t num_rows = 0;         // T
  int64_t max_blocks = 1;       // M
  PagedTileCounts counts;
  // The offsets of the arrays that follow the positions.
  int64_t first_sequence = 0;  // sequences_T
  int64_t first_table = 0;     // block_tables_SM
  int64_t first_tile = 0;      // tiles_I
};
// Runs on the host and reads the sequences' block tables. Sequences for which `without_tiles`
// returns true have positions and tables but no tiles: their keys and values are appended, and
// their attention is left to others. REQUIRES: as PlanPagedTiles; the rows of the sequences follow
// one another, and the tables have entries for all their positions.
PagedStep LayOutPagedStep(const std::vector<PagedSequence>& sequences, int64_t num_heads,
                          int64_t num_kv_heads, int64_t head_size,
                          bool (*without_tiles)(const PagedSequence& sequence) = nullptr);
// Lays out a step of sequences that have one row each and at most max_len positions, in a form with
// which launches can be recorded: everything except the values of `arrays` depends only on the
// number of sequences, on max_len and on the heads. Tables and partitions are those of max_len
// positions; partitions past a sequence's end do nothing. Results are the same as with
// LayOutPagedStep. REQUIRES: each sequence has one row and a past_len below max_len.
PagedStep LayOutDecodeStep(const std::vector<PagedSequence>& sequences, int64_t max_len,
                           int64_t num_heads, int64_t num_kv_heads, int64_t head_size);

// out = softmax(scale q k^T) v as PagedAttention computes it: causal, and over the last
// `sliding_window` positions if that is not 0.
//
// A NaN in a query makes its row and head NaN. A NaN in a key or value makes the rows that see it
// NaN.
struct PlainPagedAttention {
  PlainPages pages;
  int64_t num_heads = 0;       // N: a multiple of K
  float scale = 0;             // > 0
  int64_t sliding_window = 0;  // 0: none
  PagedTileCounts counts;      // from PlanPagedTiles for these numbers of heads and this head size
  // The most blocks of threads to launch for split tiles if all have the same number of places for
  // partitions (LayOutDecodeStep); a block then takes several partitions. More blocks do not run
  // faster, and a block whose partition is past the end of its sequence also takes time.
  int64_t max_split_blocks = 8192;
  const PagedTile* tiles_I = nullptr;
  const int32_t* block_tables_SM = nullptr;
  int64_t max_blocks = 0;  // M
  const void* q_TND = nullptr;
  int64_t q_row_stride = 0;
  void* out_TND = nullptr;
  int64_t out_row_stride = 0;
};
// Returns the bytes of workspace that the call needs: one partial result for each query and
// partition of the split tiles, or 0 if nothing is split. Without a window it grows with the sum of
// the sequences' lengths, not with the longest of them. REQUIRES: the numbers of heads and the
// head size are valid.
int64_t PagedAttentionWorkspaceBytes(const PlainPagedAttention& problem);
std::string PagedAttentionCuda(const PlainPagedAttention& problem, const DeviceContext& context);

}  // namespace taopd
