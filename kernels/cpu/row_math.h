// The loops over one row of float32 numbers that cost time: maximum, sum of exponentials, scaling.
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

struct RowMath {
  const char* name;
  // The largest number; -inf for none. NaNs are skipped (the sums show them).
  float (*max)(const float* z, int64_t n);
  // tile_max[i] = the largest of z[i * kTileSize ...]; ceil(n / kTileSize) numbers.
  void (*tile_max)(const float* z, int64_t n, float* tile_max);
  // The sums. shift must be finite and no smaller than any z_v; scale > 0.
  ExpSums (*sum_exp)(const float* z, int64_t n, float shift, float scale);
  // The same, and z_v becomes exp(x_v).
  ExpSums (*exp_in_place)(float* z, int64_t n, float shift, float scale);
  // z_v *= factor.
  void (*scale)(float* z, int64_t n, float factor);
  // How many z_v >= threshold.
  int64_t (*count_at_least)(const float* z, int64_t n, float threshold);
};

// The widest set that this processor has.
const RowMath& BestRowMath();

// Every set that this processor has, narrowest first; for tests.
int NumRowMaths();
const RowMath& RowMathAt(int index);

}  // namespace taopd::cpu
