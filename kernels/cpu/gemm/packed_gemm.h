// Products of any number of rows with a weight matrix that is packed once.
//
//   C[m][n] = sum_k x[m][k] W[n][k],   x [M, K] row-major, W [N, K], C [M, N] float32
//
// W is bfloat16 or float32. It is packed into panels of kPanelOutputs outputs: bfloat16 in pairs of
// adjacent k,
//
//   packed[((n / 64 * ceil(K / 2) + k / 2) * 64 + n % 64) * 2 + k % 2] = W[n][k],
//
// and float32 one k after the other,
//
//   packed[(n / 64 * K + k) * 64 + n % 64] = W[n][k].
//
// Outputs from N on are zeros, and so is the second number of the last pair if K is odd. The layout
// is the same for every instruction set, so any of them may use a packed matrix. A panel of pairs
// may also be coded in three quarters of its bytes (coded_panel.h); its products have the same
// bits.
//
// Sums are float32 and run over all of K in one chain per element, whose order depends only on K,
// not on M, N, the position of the row, the other rows or the threads. The products of one row
// therefore have the same bits in a decoding step, in a prompt and in a training batch.
//
// One source (packed_gemm_isa.h) is compiled for each of several instruction sets:
//
//  - base, avx2 and avx512 sum over k in ascending order; avx2 and avx512 fuse multiplication and
//    addition, so they give the same bits. Both numbers of a pair are widened to float32 in
//    registers, which is exact, and multiplied by a float32 x.
//  - avx512_bf16 differs only in the pairs, which it multiplies with VDPBF16PS. The instruction
//    adds the two products of a pair to the sum in a fixed order, odd k and then even k, each with
//    one rounding to nearest even. It reads denormal inputs as zero and flushes denormal sums to
//    zero.
//  - amx_bf16 multiplies pairs with TDPBF16PS, whatever the number of rows, because another
//    instruction would give other bits. It takes 32 k at a time: two sums start at zero, one adds
//    up the products of even k and the other those of odd k, in ascending order with one rounding
//    per product; their sum is then added to the element's. Denormals are as with VDPBF16PS.
//
// No alignment is required, but panels should start at a cache line. The functions keep no state;
// any thread may call them.
#pragma once

#include <cstdint>

#include "kernels/cpu/gemm/coded_panel.h"
#include "kernels/cpu/gemm/panel_gemm.h"
#include "kernels/cpu/isa/isa.h"
#include "taopd/base/always_inline.h"
#include "taopd/base/round_up.h"

namespace taopd::cpu {

// Outputs per panel.
inline constexpr int64_t kPanelOutputs = 64;

TAOPD_ALWAYS_INLINE int64_t NumPackedPanels(int64_t num_n) { return CeilDiv(num_n, kPanelOutputs); }

// Elements of one panel.
TAOPD_ALWAYS_INLINE int64_t PairPanelElements(int64_t num_k) {
  return RoundUp(num_k, 2) * kPanelOutputs;
}
TAOPD_ALWAYS_INLINE int64_t FloatPanelElements(int64_t num_k) { return num_k * kPanelOutputs; }

// Packs num_n outputs, row n at w + n * w_stride, into columns [column, column + num_n) of one
// panel. REQUIRES: 0 <= column and column + num_n <= kPanelOutputs.
void PackPairColumns(const Bfloat16Bits* w, int64_t w_stride, int64_t num_n, int64_t num_k,
                     int64_t column, Bfloat16Bits* panel);
void PackFloatColumns(const float* w, int64_t w_stride, int64_t num_n, int64_t num_k,
                      int64_t column, float* panel);

// Packs the transpose of a matrix [R, N], where rows[r] + first is the first of num_n <=
// kPanelOutputs adjacent elements of row r: the panel of the outputs n whose inputs are r. The rest
// of the panel is filled with zeros, including the second number of the last pair if R is odd.
void PackPairRows(const Bfloat16Bits* const* rows, int64_t first, int64_t num_r, int64_t num_n,
                  Bfloat16Bits* panel);
void PackFloatRows(const float* const* rows, int64_t first, int64_t num_r, int64_t num_n,
                   float* panel);

// Fills columns [column, kPanelOutputs) of one panel with zeros.
void ZeroPairColumns(int64_t num_k, int64_t column, Bfloat16Bits* panel);
void ZeroFloatColumns(int64_t num_k, int64_t column, float* panel);

// Computes num_m rows of C for num_n outputs, which are those of ceil(num_n / 64) successive
// panels. If `accumulate` is set, the sums of the elements continue from the numbers in C. Each
// panel is read from memory once per call, and the rows of x once per panel. Callers with many rows
// pass blocks of rows that stay in a cache.
template <typename X, typename Panels>
using MultiplyPanels = void (*)(const X* x, int64_t x_stride, Panels panels, int64_t num_m,
                                int64_t num_n, int64_t num_k, float* c, int64_t c_stride,
                                bool accumulate);

// Successive panels of bfloat16 pairs: plain, or coded (coded_panel.h), which gives the same bits.
struct PairPanels {
  TAOPD_ALWAYS_INLINE PairPanels(const Bfloat16Bits* plain_panels) : plain(plain_panels) {}
  TAOPD_ALWAYS_INLINE PairPanels(const CodedPanel* coded_panels) : coded(coded_panels) {}

  const Bfloat16Bits* plain = nullptr;
  const CodedPanel* coded = nullptr;  // null: `plain` is used
};

// Adds A^T B to C [M, N], where A [R, M] and B [R, N] have up to kPanelOutputs columns. The factors
// are float32 rows in place, where row r begins at r * stride, or bfloat16 that is packed: A by
// PackedGemm::pack_first_factor, and B as one panel by PackPairRows. The products of 128 steps (of
// 512 rows with amx_bf16) are summed before they are added to C, so an element's sum depends only
// on R.
using AddTransposedPairs = void (*)(const Bfloat16Bits* a, const Bfloat16Bits* b, int64_t num_r,
                                    int64_t num_m, int64_t num_n, float* c, int64_t c_stride);
using AddTransposedFloats = void (*)(const float* a, int64_t a_stride, const float* b,
                                     int64_t b_stride, int64_t num_r, int64_t num_m, int64_t num_n,
                                     float* c, int64_t c_stride);

struct PackedGemm {
  // Exactly one of the two products with bfloat16 weights is not null. The second takes the same
  // rows as float32 (PanelGemm::widen).
  MultiplyPanels<Bfloat16Bits, PairPanels> multiply_pairs;
  MultiplyPanels<float, PairPanels> multiply_widened_pairs;
  // The product with float32 weights.
  MultiplyPanels<float, const float*> multiply_floats;

  // The number of rows that are computed together in registers, and the multiple of it that callers
  // with many rows should pass at a time.
  int64_t row_tile, row_block;

  // The gradients of the weights. Null where multiply_pairs is null.
  AddTransposedPairs add_transposed_pairs;
  // Packs num_m columns of A, whose row r begins at rows[r] + first, into first_factor_elements(R).
  void (*pack_first_factor)(const Bfloat16Bits* const* rows, int64_t first, int64_t num_r,
                            int64_t num_m, Bfloat16Bits* packed);
  int64_t (*first_factor_elements)(int64_t num_r);
  AddTransposedFloats add_transposed_floats;

  // to[i] = from[i] + bias[i], rounded to the nearest bfloat16, ties to even; every NaN becomes the
  // quiet NaN 0x7fc0. `bias` may be null.
  void (*add_and_round)(const float* from, const float* bias, int64_t num, Bfloat16Bits* to);
};

TAOPD_DECLARE_TILE_ISA_TABLES(PackedGemm, kPackedGemm)

// Returns the table of one instruction set. REQUIRES: IsSupported(set).
TAOPD_ALWAYS_INLINE const PackedGemm& PackedGemmOf(InstructionSet set) {
  return TAOPD_TILE_ISA_TABLE(set, kPackedGemm);
}
// Returns the table of the widest instruction set.
TAOPD_ALWAYS_INLINE const PackedGemm& BestPackedGemm() {
  return PackedGemmOf(WidestInstructionSet());
}

}  // namespace taopd::cpu
