// The loops for sampling from one row of float32 logits: maxima, weights exp((z - shift) * scale)
// and their sums, and the weight above a threshold.
//
// One source (weight_row_isa.h) is compiled for several instruction sets (kernels/cpu/isa/isa.h).
// All of them do the same arithmetic on 16 lanes in the same order, without fused multiply-add, so
// the results have the same bits on every machine. Within a block of 1024 numbers, each lane sums
// in float32; all other sums are float64.
//
// The relative error of a weight exp(x) is below (1 + |x|) 2^-22; it is exactly 1 for x = 0 and 0
// for x < -88.5 and thus for -inf. Except in `max`, no logit may be NaN or +inf. No alignment is
// required. The functions keep no state; any thread may call them.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa/isa.h"
#include "taopd/base/always_inline.h"
#include "taopd/base/round_up.h"

namespace taopd::cpu {

inline constexpr int64_t kWeightBlock = 1024;
inline constexpr int64_t kWeightLanes = 16;

TAOPD_ALWAYS_INLINE constexpr int64_t NumWeightBlocks(int64_t n) {
  return CeilDiv(n, kWeightBlock);
}

// Arguments of WeightRow::split: the numbers with low <= z < high are the band.
struct SplitRow {
  const float* z = nullptr;  // [n]
  const float* w = nullptr;  // [n]
  int64_t n = 0;
  float low = 0, high = 0;
  double* above_sums = nullptr;  // [blocks], sums of the w with z >= high
  double* band_sums = nullptr;   // [blocks], sums of the w in the band
  // [capacity + 16], the indices of the first `capacity` numbers of the band, in ascending order.
  int32_t* band = nullptr;
  int64_t capacity = 0;
};

struct WeightRow {
  // Returns the largest number. Writes the largest of each 64 to lane_max: lane_max[b * 16 + l] is
  // the maximum over i = l (mod 16) in block b, or -inf if there are none; there are 16 numbers per
  // block. *valid tells whether there was neither a NaN nor +inf.
  float (*max)(const float* z, int64_t n, float* lane_max, bool* valid);
  // Writes the sum of the weights of each block and, unless w is null, the weights. `shift` must be
  // finite and at least as large as every z; scale > 0.
  void (*weights)(const float* z, int64_t n, float shift, float scale, float* w,
                  double* block_sums);
  // Returns the sum of the w whose z is at least `threshold`.
  double (*weight_at_least)(const float* z, const float* w, int64_t n, float threshold);
  // Returns how many numbers the band has.
  int64_t (*split)(const SplitRow& job);
};

TAOPD_DECLARE_ISA_TABLES(WeightRow, kWeightRow)

// Returns the table of one instruction set. REQUIRES: IsSupported(set).
TAOPD_ALWAYS_INLINE const WeightRow& WeightRowOf(InstructionSet set) {
  return TAOPD_ISA_TABLE(set, kWeightRow);
}

}  // namespace taopd::cpu
