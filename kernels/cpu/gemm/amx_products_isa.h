// MultiplyPanels of packed_gemm.h for pairs of bfloat16 with AMX. The file is empty for any other
// instruction set. packed_gemm_isa.h includes it within its namespace.
#pragma once

#include "kernels/cpu/gemm/amx_tiles_isa.h"

#ifdef TAOPD_PAIRS_BY_AMX

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

#endif
