// The loops of attention_loops.h, compiled once per instruction set (kernels/cpu/isa/isa.h).
#pragma once

#include <stdint.h>

#include "kernels/cpu/attention/append_isa.h"
#include "kernels/cpu/attention/attention_loops.h"
#include "kernels/cpu/attention/softmax_isa.h"
#include "kernels/cpu/attention/tile_product_isa.h"
#include "taopd/base/always_inline.h"
#include "taopd/base/round_up.h"

namespace taopd::cpu::TAOPD_ISA {
namespace {

constexpr int64_t kBlocksPerPartition = kPartitionTokens / kBlockTokens;
// Scores of a row. A cache line separates rows, so that they do not compete for the same cache
// sets.
constexpr int64_t kScoreStride = kPartitionTokens + 16;
constexpr int64_t kMaxSlices = kMaxHeadSize / kValueColumns;

// The locations of one partition of a key-value head.
struct PartitionPanels {
  int64_t num_value_panels;
  // The distances from the keys to the values, and from the values to the data after them.
  int64_t next_of_keys, next_of_values;
  const char* keys[kBlocksPerPartition * kPanelsPerBlock];
  const char* values[kBlocksPerPartition * kMaxSlices * kPanelsPerBlock];
};

template <typename Arithmetic, DataType kType>
struct Attention {
  static constexpr int kNumbers = Arithmetic::kStepNumbers;
  static constexpr int64_t kStepsPerBlock = kBlockTokens / kNumbers;

  // Returns the positions of the partition that row r sees, counted from the partition's first.
  static TAOPD_ALWAYS_INLINE TokenRange Visible(const QueryTile& tile, int64_t r,
                                                int64_t partition) {
    const int64_t position = tile.past_len + (tile.first + r) / tile.group;
    const int64_t first = partition * kPartitionTokens;
    int64_t begin = tile.sliding_window > 0 ? position - tile.sliding_window + 1 - first : -first;
    int64_t end = position + 1 - first;
    begin = begin < 0 ? 0 : begin;
    end = end > kPartitionTokens ? kPartitionTokens : end;
    return begin < end ? TokenRange{begin, end} : TokenRange{0, 0};
  }

  // Fills in the panels of the blocks that hold `tokens`. Only the entries of the block table for
  // these need exist.
  static void FindPanels(const QueryTile& tile, int64_t partition, TokenRange tokens,
                         PartitionPanels* panels) {
    const int64_t key_bytes = KeyBytesPerHead(kType, tile.head_size);
    const int64_t num_slices = PaddedValueSize(tile.head_size) / kValueColumns;
    panels->num_value_panels = num_slices * kPanelsPerBlock;
    panels->next_of_keys = key_bytes;
    panels->next_of_values =
        tile.next_head_follows ? BytesPerHead(kType, tile.head_size) - key_bytes : 0;
    for (int64_t i = tokens.begin / kBlockTokens; i * kBlockTokens < tokens.end; ++i) {
      const int64_t block = tile.block_table[partition * kBlocksPerPartition + i];
      const char* const keys = tile.blocks + block * tile.block_stride_bytes;
      const char** const values = panels->values + i * panels->num_value_panels;
      for (int64_t j = 0; j < kPanelsPerBlock; ++j) {
        panels->keys[i * kPanelsPerBlock + j] = keys + j * kPanelBytes;
        for (int64_t slice = 0; slice < num_slices; ++slice) {
          values[slice * kPanelsPerBlock + j] =
              keys + key_bytes + slice * kStepsPerBlock * kStepBytes + j * kPanelBytes;
        }
      }
    }
  }

  // Rows of weights, [num_rows][kScoreStride], and the sums of values that are computed from them.
  struct Sums {
    const PartitionPanels* panels;
    const uint32_t* weights;
    float* sums;  // [num_rows][size]
    int64_t size;

    // Adds the products of whole steps to rows [row, row + num_rows).
    void Add(int64_t row, int64_t num_rows, Steps steps, bool accumulate) const {
      if (steps.begin >= steps.end) return;
      Multiply<Arithmetic>(
          weights + row * kScoreStride, kScoreStride, num_rows,
          {panels->values, panels->num_value_panels, kStepsPerBlock, panels->next_of_values},
          panels->num_value_panels, steps, sums + row * size, size, accumulate);
    }

    // Adds the products of a step in which only the numbers in `mask` are seen. The other numbers
    // may be NaN, so a weight of zero is not enough to leave them out.
    void AddMasked(int64_t row, int64_t num_rows, int64_t step, uint32_t mask) const {
      uint32_t seen[kMaxHeadSize];
      const char* seen_panels[kMaxSlices * kPanelsPerBlock];
      for (int64_t j = 0; j < panels->num_value_panels; ++j) {
        const char* const from =
            panels->values[step / kStepsPerBlock * panels->num_value_panels + j] +
            step % kStepsPerBlock * kStepBytes;
        seen_panels[j] = reinterpret_cast<const char*>(seen + j * kPanelWidth);
        uint32_t words[kPanelWidth];
        __builtin_memcpy(words, from, sizeof(words));
        for (int64_t i = 0; i < kPanelWidth; ++i) seen[j * kPanelWidth + i] = words[i] & mask;
      }
      Multiply<Arithmetic>(weights + row * kScoreStride + step * Arithmetic::kStepWords,
                           kScoreStride, num_rows, {seen_panels, 0, 1, 0}, panels->num_value_panels,
                           {0, 1}, sums + row * size, size, true);
    }

    // Adds the products of an arbitrary range of positions.
    void AddTokens(int64_t row, int64_t num_rows, TokenRange tokens) const {
      if (tokens.begin >= tokens.end) return;
      if constexpr (kNumbers == 2) {
        if (tokens.begin % 2 != 0) {
          AddMasked(row, num_rows, tokens.begin / 2, 0xffff0000);
          ++tokens.begin;
        }
      }
      Add(row, num_rows, {tokens.begin / kNumbers, tokens.end / kNumbers}, true);
      if constexpr (kNumbers == 2) {
        if (tokens.end % 2 != 0) AddMasked(row, num_rows, tokens.end / 2, 0x0000ffff);
      }
    }
  };

  // Calls part(row, num_rows, range) for each run of rows that see the same positions.
  template <typename Part>
  static TAOPD_ALWAYS_INLINE void ForEachRun(const TokenRange* ranges, int64_t num_rows,
                                             const Part& part) {
    for (int64_t row = 0; row < num_rows;) {
      int64_t end = row + 1;
      while (end < num_rows && ranges[end].begin == ranges[row].begin &&
             ranges[end].end == ranges[row].end) {
        ++end;
      }
      part(row, end - row, ranges[row]);
      row = end;
    }
  }

  // sums = weights times values. Each row takes the positions that it sees in order: first those
  // before the steps that all rows see, then these steps, then the positions after them.
  static void SumValues(const TokenRange* ranges, int64_t num_rows, const Sums& out) {
    int64_t begin = 0, end = kPartitionTokens / kNumbers;
    for (int64_t row = 0; row < num_rows; ++row) {
      const int64_t row_begin = CeilDiv(ranges[row].begin, kNumbers);
      const int64_t row_end = ranges[row].end / kNumbers;
      begin = begin < row_begin ? row_begin : begin;
      end = end > row_end ? row_end : end;
    }
    if (end < begin) end = begin;
    bool before = begin == end;
    for (int64_t row = 0; row < num_rows; ++row) before |= ranges[row].begin < begin * kNumbers;
    if (before) {
      for (int64_t i = 0; i < num_rows * out.size; ++i) out.sums[i] = 0;
      const int64_t limit = begin * kNumbers;
      ForEachRun(
          ranges,
          num_rows, [&](int64_t row, int64_t num, TokenRange range) __attribute__((always_inline)) {
            out.AddTokens(row, num, {range.begin, range.end < limit ? range.end : limit});
          });
    }
    out.Add(0, num_rows, {begin, end}, before);
    const int64_t limit = end * kNumbers;
    ForEachRun(
        ranges,
        num_rows, [&](int64_t row, int64_t num, TokenRange range) __attribute__((always_inline)) {
          out.AddTokens(row, num, {range.begin > limit ? range.begin : limit, range.end});
        });
  }

  // Computes rows [first, first + num_rows) of the tile, at most kTileRows.
  static void AttendRows(const QueryTile& tile, const PartitionPanels& panels, int64_t partition,
                         int64_t first, int64_t num_rows, float* states) {
    const int64_t size = PaddedValueSize(tile.head_size);
    TokenRange ranges[kTileRows];
    TokenRange all = {kPartitionTokens, 0};
    for (int64_t row = 0; row < num_rows; ++row) {
      ranges[row] = Visible(tile, first + row, partition);
      all.Include(ranges[row]);
    }
    if (all.begin >= all.end) return;
    alignas(64) float scores[kTileRows * kScoreStride];
    const int64_t panel = all.begin / kPanelWidth;
    const int64_t num_panels = CeilDiv(all.end, kPanelWidth) - panel;
    const int64_t words = QueryWords(tile.head_size);
    const int64_t num_steps = tile.head_size / kNumbers;
    Multiply<Arithmetic>(tile.queries + first * words, words, num_rows,
                         {panels.keys + panel, 0, num_steps, panels.next_of_keys}, num_panels,
                         {0, num_steps}, scores + panel * kPanelWidth, kScoreStride, false);
    float maxima[kTileRows], totals[kTileRows];
    for (int64_t row = 0; row < num_rows; ++row) {
      if (ranges[row].begin == ranges[row].end) continue;
      Softmax<Arithmetic>(scores + row * kScoreStride, ranges[row], tile.scale_log2e, &maxima[row],
                          &totals[row]);
    }
    alignas(64) float sums[kTileRows * kMaxHeadSize];
    SumValues(ranges, num_rows, {&panels, reinterpret_cast<const uint32_t*>(scores), sums, size});
    for (int64_t row = 0; row < num_rows; ++row) {
      if (ranges[row].begin == ranges[row].end) continue;
      MergeRow(maxima[row], totals[row], sums + row * size, size, tile.scale_log2e,
               states + (first + row) * StateSize(tile.head_size));
    }
  }

  static void Attend(const QueryTile& tile, int64_t partition, float* states) {
    TokenRange all = {kPartitionTokens, 0};
    for (int64_t row = 0; row < tile.num_rows; ++row) all.Include(Visible(tile, row, partition));
    if (all.begin >= all.end) return;
    PartitionPanels panels;
    FindPanels(tile, partition, all, &panels);
    for (int64_t row = 0; row < tile.num_rows; row += kTileRows) {
      const int64_t rest = tile.num_rows - row;
      AttendRows(tile, panels, partition, row, rest < kTileRows ? rest : kTileRows, states);
    }
  }

  static int64_t QueryWords(int64_t head_size) {
    return head_size / kNumbers * Arithmetic::kStepWords;
  }
  static void PackQuery(const void* query, int64_t head_size, uint32_t* packed) {
    Arithmetic::PackQuery(query, head_size, packed);
  }
  static void Finish(const float* state, int64_t head_size, void* out) {
    if constexpr (kType == DataType::kFloat32) {
      FinishRow(state, head_size, static_cast<float*>(out));
    } else {
      FinishRow(state, head_size, static_cast<uint16_t*>(out));
    }
  }

  static constexpr AttentionLoops Table() {
    return {QueryWords, PackQuery, kType == DataType::kFloat32 ? AppendFloat32 : AppendBfloat16,
            Clear,      Attend,    Merge,
            Finish};
  }
};

}  // namespace

#ifdef __AVX512BF16__
const AttentionLoops kBfloat16Attention = Attention<PairArithmetic, DataType::kBFloat16>::Table();
#else
const AttentionLoops kFloat32Attention = Attention<Float32Arithmetic, DataType::kFloat32>::Table();
const AttentionLoops kBfloat16Attention =
    Attention<WidenedBfloat16Arithmetic, DataType::kBFloat16>::Table();
#endif

}  // namespace taopd::cpu::TAOPD_ISA
