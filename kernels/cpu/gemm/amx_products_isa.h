// MultiplyPanels and AddTransposedPairs of packed_gemm.h with AMX, and the packing of the latter's
// first factor. The file is empty for any other instruction set.
#pragma once

#include "kernels/cpu/gemm/amx_tiles_isa.h"
#include "kernels/cpu/gemm/coded_panel_isa.h"

#ifdef TAOPD_PAIRS_BY_AMX

namespace taopd::cpu::TAOPD_ISA {
namespace {

// All rows of a call are multiplied by this many steps of a panel before the next steps. Few rows
// wait for the weights, so those of a coded panel are multiplied soon after they are expanded.
constexpr int64_t kAmxBlockSteps = 256, kAmxFewRowsBlockSteps = kAmxSteps;
// With at least this many rows, a copy of the weights in the second-level cache saves time.
constexpr int64_t kAmxMinRowsToCopy = 8 * kAmxRowBlock;

// Multiplies all rows by some inputs of one panel.
inline void MultiplyAmxSteps(const Bfloat16Bits* x, int64_t x_stride, int64_t num_m,
                             const char* weights, int64_t inputs, AmxBlock block, int64_t columns,
                             const char* ahead, int64_t ahead_bytes, AmxRegisters* registers) {
  const int64_t whole = inputs / kAmxInputs, rest = inputs % kAmxInputs;
  alignas(kLineBytes) char last_weights[kAmxWeightBytes];
  alignas(kLineBytes) char last_x[kAmxRowBlock * kAmxRowBytes];
  if (rest > 0) CopyLastWeights(weights + whole * kAmxWeightBytes, rest, last_weights);
  const int64_t x_bytes = x_stride * static_cast<int64_t>(sizeof(Bfloat16Bits));
  const int64_t num_blocks = CeilDiv(num_m, kAmxRowBlock);
  const int64_t lines_of_block = CeilDiv(ahead_bytes / kLineBytes, num_blocks);
  for (int64_t m = 0; m < num_m; m += kAmxRowBlock) {
    const int64_t rows = num_m - m < kAmxRowBlock ? num_m - m : kAmxRowBlock;
    const Bfloat16Bits* const rows_x = x + m * x_stride;
    block.whole = {reinterpret_cast<const char*>(rows_x), x_bytes, kAmxRowBytes, weights, whole};
    block.rest = {last_x, kAmxRowBytes, 0, last_weights, rest > 0};
    for (int64_t i = 0; rest > 0 && i < rows; ++i) {
      CopyLastInputs(rows_x + i * x_stride + whole * kAmxInputs, rest, last_x + i * kAmxRowBytes);
    }
    // Blocks of more than 16 rows go through the inputs twice.
    const int64_t passes = whole * (rows > kAmxRows ? 2 : 1);
    AmxPrefetch prefetch{ahead, passes > 0 ? CeilDiv(lines_of_block, passes) : 0};
    MultiplyAmxBlock(block, rows, columns, registers, &prefetch);
    block.c += rows * block.c_stride;
    ahead += lines_of_block * kLineBytes;
  }
}

// Copies the inputs of up to kAmxRowBlock rows, so that those of one instruction are adjacent, and
// adds zeros up to a multiple of kAmxInputs.
inline void CopyAmxRows(const Bfloat16Bits* x, int64_t x_stride, int64_t rows, int64_t inputs,
                        char* to) {
  constexpr int64_t kTileBytes = kAmxRowBlock * kAmxRowBytes;
  const int64_t whole = inputs / kAmxInputs, rest = inputs % kAmxInputs;
  for (int64_t m = 0; m < rows; ++m) {
    const Bfloat16Bits* const from = x + m * x_stride;
    char* const row = to + m * kAmxRowBytes;
    for (int64_t i = 0; i < whole; ++i) {
      __builtin_memcpy(row + i * kTileBytes, from + i * kAmxInputs, kAmxRowBytes);
    }
    if (rest > 0) CopyLastInputs(from + whole * kAmxInputs, rest, row + whole * kTileBytes);
  }
}

// Multiplies by several plain panels, which stay in the second-level cache. A copy of the rows
// stays in the first-level cache meanwhile: rows in place, at distances of a power of two, would
// share few of its sets.
void MultiplyAmxPanels(const Bfloat16Bits* x, int64_t x_stride, const Bfloat16Bits* panels,
                       int64_t num_m, int64_t num_n, int64_t num_k, float* c, int64_t c_stride,
                       bool accumulate) {
  constexpr int64_t kTileBytes = kAmxRowBlock * kAmxRowBytes;
  alignas(kLineBytes) char rows_of_x[kAmxBlockSteps / kAmxSteps * kTileBytes];
  alignas(kLineBytes) char last_weights[kAmxWeightBytes];
  const int64_t all_steps = CeilDiv(num_k, 2), panel_bytes = all_steps * kStepBytes;
  // The next rows are prefetched, also those after the last, because callers often continue there.
  // A block of rows goes through its inputs twice per panel.
  const int64_t passes = num_k / kAmxInputs * 2 * CeilDiv(num_n, kWidth);
  const int64_t lines_of_rows =
      kAmxRowBlock * x_stride * static_cast<int64_t>(sizeof(Bfloat16Bits)) / kLineBytes;
  const int64_t lines = passes > 0 ? CeilDiv(lines_of_rows, passes) : 0;
  AmxRegisters registers;
  for (int64_t m = 0; m < num_m; m += kAmxRowBlock) {
    const int64_t rows = num_m - m < kAmxRowBlock ? num_m - m : kAmxRowBlock;
    const Bfloat16Bits* const block_x = x + m * x_stride;
    AmxPrefetch prefetch{reinterpret_cast<const char*>(block_x + rows * x_stride), lines};
    for (int64_t step = 0; step == 0 || step < all_steps; step += kAmxBlockSteps) {
      const int64_t steps = all_steps - step < kAmxBlockSteps ? all_steps - step : kAmxBlockSteps;
      const int64_t inputs = num_k - 2 * step < 2 * steps ? num_k - 2 * step : 2 * steps;
      const int64_t whole = inputs / kAmxInputs, rest = inputs % kAmxInputs;
      CopyAmxRows(block_x + 2 * step, x_stride, rows, inputs, rows_of_x);
      const char* weights = reinterpret_cast<const char*>(panels) + step * kStepBytes;
      for (int64_t n = 0; n < num_n; n += kWidth, weights += panel_bytes) {
        if (rest > 0) CopyLastWeights(weights + whole * kAmxWeightBytes, rest, last_weights);
        const AmxBlock block = {
            {rows_of_x, kAmxRowBytes, kTileBytes, weights, whole},
            {rows_of_x + whole * kTileBytes, kAmxRowBytes, kTileBytes, last_weights, rest > 0},
            accumulate || step > 0,
            c + m * c_stride + n,
            c_stride};
        MultiplyAmxBlock(block, rows, num_n - n, &registers, &prefetch);
      }
    }
  }
}

constexpr uint8_t kNoHighBytes[kHighBytes] = {};  // an expander without codes reads them

// The weights of one panel, instruction by instruction. Weights are expanded or copied one
// instruction ahead, because loads of tiles wait for stores that have just been made.
class AmxWeights {
 public:
  AmxWeights(const char* plain, const CodedPanel* coded, int64_t all_steps)
      : expander_(coded != nullptr ? *coded : CodedPanel{nullptr, kNoHighBytes, nullptr}),
        plain_(coded != nullptr ? nullptr : plain),
        steps_left_(all_steps) {
    Prepare();
  }

  // Returns the next weights, valid until the next call but one. Steps after the last are zeros.
  TAOPD_ALWAYS_INLINE const char* Next() {
    const char* const next = prepared_;
    Prepare();
    return next;
  }

 private:
  TAOPD_ALWAYS_INLINE void Prepare() {
    if (steps_left_ <= 0) return;
    const int64_t steps = steps_left_ < kAmxSteps ? steps_left_ : kAmxSteps;
    steps_left_ -= steps;
    if (plain_ != nullptr && steps == kAmxSteps) {
      prepared_ = plain_;
      plain_ += kAmxWeightBytes;
      return;
    }
    char* const to = made_[slot_];
    slot_ ^= 1;
    if (plain_ != nullptr) {
      __builtin_memcpy(to, plain_, steps * kStepBytes);
    } else {
      expander_.Expand(steps, to);
    }
    __builtin_memset(to + steps * kStepBytes, 0, (kAmxSteps - steps) * kStepBytes);
    prepared_ = to;
  }

  StepExpander expander_;
  const char* plain_;
  const char* prepared_ = nullptr;
  int64_t steps_left_;
  int slot_ = 0;
  alignas(kLineBytes) char made_[2][kAmxWeightBytes];
};

// Multiplies up to 16 rows. The sums stay in registers for a whole panel, which is read once, in
// order.
void MultiplyAmxFewRows(const Bfloat16Bits* x, int64_t x_stride, PairPanels panels, int64_t num_m,
                        int64_t num_n, int64_t num_k, float* c, int64_t c_stride, bool accumulate) {
  const int64_t all_steps = CeilDiv(num_k, 2), whole = num_k / kAmxInputs,
                rest = num_k % kAmxInputs;
  const int64_t x_bytes = x_stride * static_cast<int64_t>(sizeof(Bfloat16Bits));
  alignas(kLineBytes) char last_x[kAmxTileBytes];
  for (int64_t m = 0; rest > 0 && m < num_m; ++m) {
    CopyLastInputs(x + m * x_stride + whole * kAmxInputs, rest, last_x + m * kAmxRowBytes);
  }
  AmxRegisters registers;
  registers.Use(num_m, num_m);
  const auto* plain = reinterpret_cast<const char*>(panels.plain);
  AmxPrefetch none;
  for (int64_t n = 0; n < num_n; n += kWidth) {
    const int64_t panel = n / kWidth;
    AmxWeights weights(plain != nullptr ? plain + panel * all_steps * kStepBytes : nullptr,
                       panels.coded != nullptr ? panels.coded + panel : nullptr, all_steps);
    AmxColumns columns(c + n, c_stride, num_m, num_n - n, accumulate);
    columns.Start();
    const char* from = reinterpret_cast<const char*>(x);
    for (int64_t i = 0; i < whole; ++i, from += kAmxRowBytes) {
      AddWideTiles({from, x_bytes, 0, weights.Next(), 1}, &none);
    }
    if (rest > 0) AddWideTiles({last_x, kAmxRowBytes, 0, weights.Next(), 1}, &none);
    columns.Finish();
  }
}

void MultiplyAmx(const Bfloat16Bits* x, int64_t x_stride, PairPanels panels, int64_t num_m,
                 int64_t num_n, int64_t num_k, float* c, int64_t c_stride, bool accumulate) {
  if (num_m <= kAmxRows) {
    MultiplyAmxFewRows(x, x_stride, panels, num_m, num_n, num_k, c, c_stride, accumulate);
    return;
  }
  if (panels.coded == nullptr && num_n > kWidth) {
    MultiplyAmxPanels(x, x_stride, panels.plain, num_m, num_n, num_k, c, c_stride, accumulate);
    return;
  }
  const bool few_rows = num_m <= kAmxRowBlock;
  const int64_t block_steps = few_rows ? kAmxFewRowsBlockSteps : kAmxBlockSteps;
  const int64_t all_steps = CeilDiv(num_k, 2);
  const auto* plain = reinterpret_cast<const char*>(panels.plain);
  const CodedPanel* coded = panels.coded;
  AmxRegisters registers;
  alignas(kLineBytes) char copied[kAmxBlockSteps * kStepBytes];
  for (int64_t n = 0; n < num_n; n += kWidth) {
    StepExpander expander(coded != nullptr ? *coded++ : CodedPanel{nullptr, kNoHighBytes, nullptr});
    for (int64_t step = 0; step == 0 || step < all_steps; step += block_steps) {
      const int64_t steps = all_steps - step < block_steps ? all_steps - step : block_steps;
      const int64_t inputs = num_k - 2 * step < 2 * steps ? num_k - 2 * step : 2 * steps;
      const char* weights = plain;
      const char* ahead = nullptr;
      int64_t ahead_bytes = steps * kStepBytes;
      if (coded != nullptr) {
        expander.Expand(steps, copied);
        weights = copied;
        ahead = reinterpret_cast<const char*>(expander.position());
        ahead_bytes = steps * kCodedStepBytes;
      } else {
        if (num_m >= kAmxMinRowsToCopy) {
          __builtin_memcpy(copied, plain, ahead_bytes);
          weights = copied;
        }
        plain += ahead_bytes;
        ahead = plain;
      }
      MultiplyAmxSteps(x + 2 * step, x_stride, num_m, weights, inputs,
                       {{}, {}, accumulate || step > 0, c + n, c_stride}, num_n - n, ahead,
                       few_rows ? 0 : ahead_bytes, &registers);
    }
  }
}
// The first factor of AddTransposedAmx: tile (r / 32, m / 16) has the 32 numbers of its rows of A
// for each of its 16 columns, tiles[((r / 32 * 4 + m / 16) * 16 + m % 16) * 32 + r % 32].
int64_t ElementsOfAmxFactor(int64_t num_r) { return RoundUp(num_r, kAmxInputs) * kWidth; }

// Transposes 16 rows of 16 words; the rows of `from` are kStepBytes apart.
TAOPD_ALWAYS_INLINE void TransposeAmxTile(const char* from, char* to) {
  Words in[16], half[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) Load(&in[i], from + i * kStepBytes);
  // Four times, row i of the result takes the first or second half of rows i / 2 and i / 2 + 8,
  // word by word in turn.
  for (int round = 0; round < 4; ++round) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      half[2 * i] = __builtin_shuffle(
          in[i], in[i + 8], Words{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
      half[2 * i + 1] = __builtin_shuffle(
          in[i], in[i + 8], Words{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) in[i] = half[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) Store(to + i * kAmxRowBytes, &in[i]);
}

void PackAmxFactor(const Bfloat16Bits* const* rows, int64_t first, int64_t num_r, int64_t num_m,
                   Bfloat16Bits* tiles) {
  alignas(kLineBytes) Bfloat16Bits pairs[kAmxInputs * kWidth];
  for (int64_t r = 0; r < num_r; r += kAmxInputs) {
    const int64_t count = num_r - r < kAmxInputs ? num_r - r : kAmxInputs;
    if (count < kAmxInputs || num_m < kWidth) __builtin_memset(pairs, 0, sizeof(pairs));
    for (int64_t i = 0; i < count; i += 2) {
      const Bfloat16Bits* const even = rows[r + i] + first;
      const Bfloat16Bits* const odd = i + 1 < count ? rows[r + i + 1] + first : nullptr;
      Bfloat16Bits* const pair = pairs + i * kWidth;
      if (odd != nullptr && num_m == kWidth) {
        for (int64_t m = 0; m < kWidth; ++m) {
          pair[2 * m] = even[m];
          pair[2 * m + 1] = odd[m];
        }
        continue;
      }
      for (int64_t m = 0; m < num_m; ++m) {
        pair[2 * m] = even[m];
        if (odd != nullptr) pair[2 * m + 1] = odd[m];
      }
    }
    char* const to = reinterpret_cast<char*>(tiles + r * kWidth);
    for (int64_t tile = 0; tile < kWidth / kAmxOutputs; ++tile) {
      TransposeAmxTile(reinterpret_cast<const char*>(pairs) + tile * kAmxRowBytes,
                       to + tile * kAmxTileBytes);
    }
  }
}

// The number of instructions whose products are summed before they are added to C.
constexpr int64_t kAmxAddedGroups = 16;

void AddTransposedAmx(const Bfloat16Bits* a, const Bfloat16Bits* b, int64_t num_r, int64_t num_m,
                      int64_t num_n, float* c, int64_t c_stride) {
  constexpr int64_t kGroupBytes = kWidth / kAmxOutputs * kAmxTileBytes;
  const auto* const tiles = reinterpret_cast<const char*>(a);
  const auto* const panel = reinterpret_cast<const char*>(b);
  const int64_t groups = num_r / kAmxInputs, rest = num_r % kAmxInputs;
  alignas(kLineBytes) char last[kAmxWeightBytes];
  if (rest > 0) CopyLastWeights(panel + groups * kAmxWeightBytes, rest, last);
  alignas(kLineBytes) float sums[kAmxRowBlock * kWidth];
  AmxRegisters registers;
  registers.Use(kAmxRows, kAmxRows);
  AmxPrefetch none;
  for (int64_t group = 0; group == 0 || group < groups; group += kAmxAddedGroups) {
    const int64_t count = groups - group < kAmxAddedGroups ? groups - group : kAmxAddedGroups;
    const bool with_rest = rest > 0 && group + count == groups;
    for (int64_t m = 0; m < num_m; m += kAmxRowBlock) {
      const char* const a_tiles = tiles + group * kGroupBytes + m / kAmxRows * kAmxTileBytes;
      // A block's second tile of rows follows its first.
      const AmxBlock block = {
          {a_tiles, kAmxRowBytes, kGroupBytes, panel + group * kAmxWeightBytes, count},
          {a_tiles + count * kGroupBytes, kAmxRowBytes, 0, last, with_rest},
          /*from_c=*/false,
          sums,
          kWidth};
      MultiplyTall(block, num_n <= kWidth / 2 ? kWidth / 2 : kWidth, &none);
      const int64_t end = num_m - m < kAmxRowBlock ? num_m - m : kAmxRowBlock;
      for (int64_t i = 0; i < end; ++i) {
        float* const to = c + (m + i) * c_stride;
        for (int64_t n = 0; n < num_n; ++n) to[n] += sums[i * kWidth + n];
      }
    }
  }
}
}  // namespace
}  // namespace taopd::cpu::TAOPD_ISA

#endif
