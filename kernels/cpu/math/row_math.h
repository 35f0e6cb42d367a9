// The loops over float32 logits that cost time: maxima and sums of exponentials, of one row or of
// the columns of a block.
//
// One source (row_math_isa.h) is compiled for several instruction sets and the widest that the
// processor has is chosen once. All of them do the same arithmetic on 16 lanes in the same order,
// without fused multiply-add, so a row's numbers are bit for bit the same on every machine and do
// not depend on the other rows. Partial sums of 1024 numbers are float32, their total is float64.
//
// -inf is probability zero; NaN and +inf come out as NaN sums. No alignment is required.
#pragma once

#include <cstdint>

namespace taopd::cpu {

// Elements per tile of TileMax.
inline constexpr int64_t kTileSize = 128;

struct ExpSums {
  double sum_exp = 0;    // sum_v exp(x_v),     x_v = (z_v - shift) * scale
  double sum_exp_x = 0;  // sum_v exp(x_v) x_v, for the entropy
};

// The columns of a block of logits: z_vn = block[v * stride + n] for v < num and n < columns. The
// block can be read in whole vectors: stride >= columns rounded up to 16.
struct ColumnExp {
  const float* block = nullptr;
  int64_t stride = 0, num = 0, columns = 0;
  // x_vn = (z_vn - shift_n) * scale + offset_n, at most 0.
  const float* shift = nullptr;
  const float* offset = nullptr;
  float scale = 1;
  float* sum_exp = nullptr;    // [columns], sum_v exp(x_vn)
  float* sum_exp_x = nullptr;  // [columns], sum_v exp(x_vn) x_vn
  // exp(x_vn) at [v * columns + n], as float32 or rounded to bfloat16; null: not written.
  void* exps = nullptr;
  bool bfloat16 = false;
};

struct RowMath {
  const char* name;
  // The largest number; -inf for none. NaNs are skipped (the sums show them).
  float (*max)(const float* z, int64_t n);
  // tile_max[i] = the largest of z[i * kTileSize ...]; ceil(n / kTileSize) numbers.
  void (*tile_max)(const float* z, int64_t n, float* tile_max);
  // The sums. shift must be finite and no smaller than any z_v; scale > 0.
  ExpSums (*sum_exp)(const float* z, int64_t n, float shift, float scale);
  // How many z_v >= threshold.
  int64_t (*count_at_least)(const float* z, int64_t n, float threshold);
  // max[n] = the largest of column n; -inf for none, NaNs are skipped. Arguments as in ColumnExp.
  void (*column_max)(const float* block, int64_t stride, int64_t num, int64_t columns, float* max);
  void (*column_exp)(const ColumnExp& job);
};

// The widest set that this processor has.
const RowMath& BestRowMath();

// Every set that this processor has, narrowest first; for tests.
int NumRowMaths();
const RowMath& RowMathAt(int index);

}  // namespace taopd::cpu
