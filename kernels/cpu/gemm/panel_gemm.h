// Matrix products of blocks that stay in a core's cache: the inner loops of the heads' GEMMs.
//
//   C[m][n] = sum_k A(m, k) B(k, n)    or    C[m][n] += the same
//
// All numbers are float32, and sums run over k in order. B is packed into panels of `panel_width`
// columns, so that the inner loop reads it with stride one; A and C are used in place. An element
// of C is always computed by the same sequence of operations, whatever M and N are, so a row of a
// product does not depend on the other rows.
//
// One source (panel_gemm_isa.h) is compiled for several instruction sets (kernels/cpu/isa/isa.h).
// Unlike in row_math.h, their results differ in the last bits: avx2 and avx512 fuse multiplication
// and addition. No alignment is required. The functions keep no state; any thread may call them.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa/isa.h"
#include "taopd/base/always_inline.h"

namespace taopd::cpu {

// bfloat16 as its bit pattern.
using Bfloat16Bits = uint16_t;

enum class ElementOrder {
  kRows,     // element (i, j) is at data[i * stride + j]
  kColumns,  // element (i, j) is at data[i + j * stride]
};

struct PanelGemm {
  int64_t panel_width;  // columns of B per panel

  // Packs B [K, N] into ceil(N / panel_width) panels of [K][panel_width]: panels[(p * K + k) *
  // panel_width + j] = B(k, p * panel_width + j). The last panel is padded with zeros.
  void (*pack)(const float* b, ElementOrder order, int64_t stride, int64_t num_k, int64_t num_n,
               float* panels);
  void (*pack_bf16)(const Bfloat16Bits* b, ElementOrder order, int64_t stride, int64_t num_k,
                    int64_t num_n, float* panels);
  // Computes C = A B, or C += A B if `accumulate` is set. C is row-major with stride c_stride.
  void (*multiply)(const float* a, ElementOrder a_order, int64_t a_stride, const float* panels,
                   int64_t num_m, int64_t num_n, int64_t num_k, float* c, int64_t c_stride,
                   bool accumulate);
  // to[i] += factor * from[i].
  void (*add_scaled)(const float* from, float factor, int64_t num, float* to);
  void (*add_scaled_bf16)(const Bfloat16Bits* from, float factor, int64_t num, float* to);
  // to[i] = from[i] * factors[i].
  void (*scale)(const float* from, const float* factors, int64_t num, float* to);
  void (*scale_bf16)(const Bfloat16Bits* from, const float* factors, int64_t num, float* to);
  // to[i] = from[i] as float32.
  void (*widen)(const Bfloat16Bits* from, int64_t num, float* to);
};

TAOPD_DECLARE_ISA_TABLES(PanelGemm, kPanelGemm)

// Returns the table of one instruction set. REQUIRES: IsSupported(set).
TAOPD_ALWAYS_INLINE const PanelGemm& PanelGemmOf(InstructionSet set) {
  return TAOPD_ISA_TABLE(set, kPanelGemm);
}
// Returns the table of the widest instruction set.
TAOPD_ALWAYS_INLINE const PanelGemm& BestPanelGemm() { return PanelGemmOf(WidestInstructionSet()); }

}  // namespace taopd::cpu
