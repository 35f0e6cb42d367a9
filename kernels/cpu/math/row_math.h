// The time-critical loops over float32 logits: maxima and sums of exponentials, of one row or of
// the columns of a block.
//
// One source (row_math_isa.h) is compiled for several instruction sets (kernels/cpu/isa/isa.h). All
// of them do the same arithmetic on 16 lanes in the same order, without fused multiply-add. So a
// row's numbers have the same bits on every machine and do not depend on the other rows. Partial
// sums of 1024 numbers are float32; their total is float64.
//
// -inf is a probability of zero. NaN and +inf make the sums NaN. No alignment is required. The
// functions keep no state; any thread may call them.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa/isa.h"
#include "taopd/base/always_inline.h"

namespace taopd::cpu {

// Elements per tile of RowMath::tile_max.
inline constexpr int64_t kTileSize = 128;

struct ExpSums {
  double sum_exp = 0;    // sum_v exp(x_v),     x_v = (z_v - shift) * scale
  double sum_exp_x = 0;  // sum_v exp(x_v) x_v, for the entropy
};

// Arguments of RowMath::column_exp: the columns of a block of logits, z_vn = block[v * stride + n]
// for v < num and n < columns. Rows are read in whole vectors, so stride must be at least `columns`
// rounded up to a multiple of 16.
struct ColumnExp {
  const float* block = nullptr;
  int64_t stride = 0, num = 0, columns = 0;
  // x_vn = (z_vn - shift_n) * scale + offset_n, at most 0.
  const float* shift = nullptr;
  const float* offset = nullptr;
  float scale = 1;
  float* sum_exp = nullptr;    // [columns], sum_v exp(x_vn)
  float* sum_exp_x = nullptr;  // [columns], sum_v exp(x_vn) x_vn
  // exp(x_vn) at [v * columns + n]; not written if null.
  void* exps = nullptr;
  bool bfloat16 = false;  // exps are rounded to bfloat16 instead of float32
};

// The references of the columns of a block: exp((z - shift) scale + offset) = exp(z scale)
// 2^-exponent, for a column whose largest number is `max`. These exponentials are at most 1, and
// usually above 1/2 at the largest number. If all numbers are -inf, shift and offset are 0, and the
// exponent is -inf. (NaNs also have this maximum.)
struct ColumnReferences {
  const float* max = nullptr;  // [columns]
  int64_t columns = 0;
  float scale = 1;
  float *shift = nullptr, *offset = nullptr, *exponent = nullptr;  // [columns]
};

inline constexpr int64_t kRankedRows = 16;
// A search for the tokens of the support that are among the k largest of a row, for up to
// kRankedRows rows; k is the size of the row's support. Tokens are in descending order of logit;
// ties go to the lower id. NaNs count as -inf, and tokens outside of the support with a logit of
// -inf are never counted.
struct SupportTopK {
  // The logit of token v and row n is logits[v * stride + n], -inf at the support; a whole vector
  // of rows is readable.
  const float* logits = nullptr;
  int64_t stride = 0, num = 0;
  // The support's logits and ids, [k, kRankedRows]. Entries that a row lacks have a NaN and an id
  // above all others.
  const float* support_logits = nullptr;
  const int32_t* ids = nullptr;
  const int32_t* sizes = nullptr;  // [kRankedRows], the sizes of the supports
  int64_t k = 0;                   // the largest size
  // Work memory, [k, kRankedRows]: the support in order.
  float* ordered_logits = nullptr;
  int32_t* ordered_ids = nullptr;
  int32_t* in_top_k = nullptr;  // [k, kRankedRows], -1 or 0
};

struct RowMath {
  // Returns the largest number, or -inf if there is none. NaNs are skipped; they show in the sums.
  float (*max)(const float* z, int64_t n);
  // Writes the largest number of each tile: tile_max[i] is the maximum of z[i * kTileSize] and the
  // numbers that follow. There are ceil(n / kTileSize) tiles.
  void (*tile_max)(const float* z, int64_t n, float* tile_max);
  // Returns the sums of a row. shift is finite and at least as large as every z_v; scale > 0.
  ExpSums (*sum_exp)(const float* z, int64_t n, float shift, float scale);
  // Returns how many z_v are at least `threshold`.
  int64_t (*count_at_least)(const float* z, int64_t n, float threshold);
  // Writes the largest number of each column to max[columns], or -inf if there is none. NaNs are
  // skipped. The arguments are those of ColumnExp.
  void (*column_max)(const float* block, int64_t stride, int64_t num, int64_t columns, float* max);
  void (*column_references)(const ColumnReferences& job);
  void (*column_exp)(const ColumnExp& job);
  void (*support_top_k)(const SupportTopK& job);
  // Writes exp(x_j) to y[num], which may be x, within 2 ulp; 0 for x_j < -708. REQUIRES: no x_j is
  // above 709.
  void (*exp_of_doubles)(const double* x, int32_t num, double* y);
};

TAOPD_DECLARE_ISA_TABLES(RowMath, kRowMath)

// Returns the table of one instruction set. REQUIRES: IsSupported(set).
TAOPD_ALWAYS_INLINE const RowMath& RowMathOf(InstructionSet set) {
  return TAOPD_ISA_TABLE(set, kRowMath);
}
// Returns the table of the widest instruction set.
TAOPD_ALWAYS_INLINE const RowMath& BestRowMath() { return RowMathOf(WidestInstructionSet()); }

}  // namespace taopd::cpu
