// Products of any number of rows with a bfloat16 weight matrix that is packed once.
//
//   C[m][n] = sum_k x[m][k] W[n][k],   x [M, K] row-major, W [N, K] bfloat16, C [M, N] float32
//
// W is packed into panels of kPairPanelWidth outputs, in pairs of adjacent k:
//
//   packed[((n / 64 * ceil(K / 2) + k / 2) * 64 + n % 64) * 2 + k % 2] = W[n][k]
//
// Outputs past N and, for an odd K, the last k are zeros. The layout is the same for every
// instruction set, so a packed matrix may be used by any of them.
//
// Sums are float32 and run over all of K in one chain per element, whose order depends on K alone:
// never on M, N, the position of the row, the other rows or the threads. So the products of one
// row are the same bits in a decoding step, in a prompt and in a training batch.
//
// There are two ways to compute them (pair_gemm_isa.h, compiled once per instruction set):
//
//  - avx512_bf16 multiplies pairs by VDPBF16PS, which adds the two products of a pair to the sum in
//    a fixed order (odd k, then even k), each with one rounding to nearest even. The instruction
//    takes denormal inputs for zero and flushes denormal sums to zero.
//  - base, avx2 and avx512 widen both numbers of a pair in registers, which is exact, and sum over
//    k in ascending order; avx2 and avx512 fuse multiplication and addition. x is float32 here.
//
// Results of two instruction sets differ in the last bits. No alignment is required, but panels
// should start at a cache line. The functions keep no state; any thread may call them.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/gemm/panel_gemm.h"
#include "kernels/cpu/isa/isa.h"

namespace taopd::cpu {

// Outputs per panel.
inline constexpr int64_t kPairPanelWidth = 64;

inline int64_t NumPairPanels(int64_t num_n) {
  return (num_n + kPairPanelWidth - 1) / kPairPanelWidth;
}

// Elements of one panel.
inline int64_t PairPanelElements(int64_t num_k) { return (num_k + 1) / 2 * 2 * kPairPanelWidth; }

// Packs num_n outputs, row n at w + n * w_stride, into columns [column, column + num_n) of one
// panel. REQUIRES: 0 <= column and column + num_n <= kPairPanelWidth.
void PackPairColumns(const Bfloat16Bits* w, int64_t w_stride, int64_t num_n, int64_t num_k,
                     int64_t column, Bfloat16Bits* panel);

// Fills columns [column, kPairPanelWidth) of one panel with zeros.
void ZeroPairColumns(int64_t num_k, int64_t column, Bfloat16Bits* panel);

struct PairGemm {
  const char* name;  // "base", "avx2", "avx512" or "avx512_bf16"

  // Exactly one of the two products is not null: `multiply` takes bfloat16 rows, and
  // `multiply_widened` the same rows as float32 (PanelGemm::widen). Both compute num_m rows of C
  // for num_n outputs, those of ceil(num_n / 64) successive panels. A panel is read once per tile
  // of rows, so callers pass a panel at a time, and blocks of rows that stay in the cache with it.
  void (*multiply)(const Bfloat16Bits* x, int64_t x_stride, const Bfloat16Bits* panels,
                   int64_t num_m, int64_t num_n, int64_t num_k, float* c, int64_t c_stride);
  void (*multiply_widened)(const float* x, int64_t x_stride, const Bfloat16Bits* panels,
                           int64_t num_m, int64_t num_n, int64_t num_k, float* c, int64_t c_stride);

  // to[i] = from[i] + bias[i], rounded to the nearest bfloat16, ties to even; every NaN becomes the
  // quiet NaN 0x7fc0. `bias` may be null.
  void (*add_and_round)(const float* from, const float* bias, int64_t num, Bfloat16Bits* to);
};

// The fastest for this processor: avx512_bf16 if it has VDPBF16PS, or the widest instruction set.
const PairGemm& BestPairGemm();

// All that this processor can run, base first.
std::vector<const PairGemm*> SupportedPairGemms();

}  // namespace taopd::cpu
