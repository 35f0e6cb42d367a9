// Sequences with random queries, keys and values for taopd/attention/paged_attention_cuda.h. They
// use pages that start as NaN and shuffled block tables, and are computed in steps of some rows
// each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "taopd/attention/paged_attention_cuda.h"
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/cuda/device_array.h"

namespace taopd::testing {

// Puts a NaN into one element of a sequence.
inline void PutNan(Stored* sequence, int64_t element) {
  std::memset(&sequence->bytes[element * SizeOf(sequence->type)], 0xff, SizeOf(sequence->type));
}

// The rows of one step: pairs of a sequence and its number of rows.
using Step = std::vector<std::pair<size_t, int64_t>>;

class PagedRun {
 public:
  // `seed` shuffles the block tables.
  PagedRun(const AttentionShape& shape, const std::vector<Stored>& sequences, uint64_t seed)
      : shape_(shape),
        sequences_(sequences),
        tables_(BlockTables(shape, sequences, seed)),
        tables_on_device_(tables_),
        keys_(Nan(PoolBytes())),
        values_(Nan(PoolBytes())) {
    for (const Stored& sequence : sequences) {
      const int64_t length = sequence.size() / shape.RowSize();
      outputs_.emplace_back(length * shape.num_heads * shape.head_size, std::nanf(""));
      past_.push_back(0);
    }
  }

  // Appends the next rows and computes their attention.
  void Run(const Step& step) {
    std::vector<PagedSequence> batch(sequences_.size());
    std::vector<int32_t> positions, lines;
    std::vector<uint8_t> rows;
    int64_t num_rows = 0;
    for (const auto& [s, num] : step) {
      batch[s] = {num_rows, num, past_[s], nullptr};
      const int64_t bytes = shape_.RowSize() * SizeOf(shape_.dtype);
      for (int64_t i = 0; i < num; ++i) {
        const int64_t position = past_[s] + i;
        positions.push_back(static_cast<int32_t>(position));
        lines.push_back(static_cast<int32_t>(s));
        const auto row = sequences_[s].bytes.begin() + position * bytes;
        rows.insert(rows.end(), row, row + bytes);
        rows.insert(rows.end(), kPadding * SizeOf(shape_.dtype), 0xff);
      }
      num_rows += num;
    }
    Compute(batch, positions, lines, rows, num_rows);
    for (const auto& [s, num] : step) past_[s] += num;
  }
  void RunAll(const std::vector<Step>& steps) {
    for (const Step& step : steps) Run(step);
  }

  // Returns [length, N, D] of each sequence; NaN where no step has computed a row.
  const std::vector<std::vector<float>>& outputs() const { return outputs_; }

 private:
  static constexpr int64_t kPadding = 8;  // elements after each row

  static std::vector<uint8_t> Nan(int64_t bytes) { return std::vector<uint8_t>(bytes, 0xff); }
  int64_t PoolBytes() const {
    return static_cast<int64_t>(tables_.size()) * shape_.num_kv_heads * kBlockTokens *
           shape_.head_size * SizeOf(shape_.dtype);
  }
  // One row per sequence, with as many blocks as entries, each used once.
  std::vector<int32_t> BlockTables(const AttentionShape& shape,
                                   const std::vector<Stored>& sequences, uint64_t seed) {
    for (const Stored& sequence : sequences) {
      const int64_t length = sequence.size() / shape.RowSize();
      max_blocks_ = std::max(max_blocks_, (length + kBlockTokens - 1) / kBlockTokens);
    }
    std::vector<int32_t> tables(max_blocks_ * sequences.size());
    std::iota(tables.begin(), tables.end(), 0);
    std::shuffle(tables.begin(), tables.end(), std::mt19937_64(seed));
    return tables;
  }

  void Compute(const std::vector<PagedSequence>& batch, const std::vector<int32_t>& positions,
               const std::vector<int32_t>& lines, const std::vector<uint8_t>& rows,
               int64_t num_rows) {
    const int64_t N = shape_.num_heads, K = shape_.num_kv_heads, D = shape_.head_size;
    const int64_t element = SizeOf(shape_.dtype), stride = shape_.RowSize() + kPadding;
    DeviceArray<uint8_t> qkv(rows), out(Nan(num_rows * (N * D + kPadding) * element));
    DeviceArray<int32_t> positions_on_device(positions), lines_on_device(lines);
    const PlainPages pages = {shape_.dtype, K, D, keys_.data(), values_.data()};
    RotateAndAppend append = {.pages = pages,
                              .num_rows = num_rows,
                              .num_heads = N,
                              .positions_T = positions_on_device.data(),
                              .sequences_T = lines_on_device.data(),
                              .block_tables_SM = tables_on_device_.data(),
                              .max_blocks = max_blocks_,
                              .k_TKD = qkv.data() + N * D * element,
                              .v_TKD = qkv.data() + (N + K) * D * element};
    append.k_row_stride = append.v_row_stride = stride;
    ASSERT_EQ(RotateAndAppendCuda(append, {}), "");

    const PagedTiles plan =
        PlanPagedTiles(batch.data(), static_cast<int64_t>(batch.size()), N, K, D);
    DeviceArray<PagedTile> tiles(plan.tiles_I);
    const PlainPagedAttention attention = {.pages = pages,
                                           .num_heads = N,
                                           .scale = shape_.scale,
                                           .sliding_window = shape_.sliding_window,
                                           .counts = plan.counts,
                                           .tiles_I = tiles.data(),
                                           .block_tables_SM = tables_on_device_.data(),
                                           .max_blocks = max_blocks_,
                                           .q_TND = qkv.data(),
                                           .q_row_stride = stride,
                                           .out_TND = out.data(),
                                           .out_row_stride = N * D + kPadding};
    DeviceContext context = {.workspace_bytes = PagedAttentionWorkspaceBytes(attention)};
    DeviceArray<uint8_t> workspace(Nan(context.workspace_bytes));
    context.workspace = workspace.data();
    ASSERT_EQ(PagedAttentionCuda(attention, context), "");

    const std::vector<float> computed = Stored{shape_.dtype, out.Values()}.Values();
    for (size_t s = 0; s < batch.size(); ++s) {
      for (int64_t i = 0; i < batch[s].num_rows; ++i) {
        const auto from = computed.begin() + (batch[s].first_row + i) * (N * D + kPadding);
        std::copy(from, from + N * D, outputs_[s].begin() + (past_[s] + i) * N * D);
      }
    }
  }

  const AttentionShape shape_;
  const std::vector<Stored> sequences_;
  int64_t max_blocks_ = 0;
  std::vector<int32_t> tables_;
  DeviceArray<int32_t> tables_on_device_;
  DeviceArray<uint8_t> keys_, values_;
  std::vector<std::vector<float>> outputs_;
  std::vector<int64_t> past_;
};

}  // namespace taopd::testing
