// Matrix products of blocks that stay in a core's cache: the inner loops of the heads' GEMMs.
//
//   C[m][n] (+)= sum_k A(m, k) B(k, n)        float32, accumulated in float32 over k in order
//
// B is packed into panels of `panel_width` columns, so that the inner loop reads it with stride
// one; A and C are read and written where they lie. One element of C is always the same sequence of
// operations, whatever M and N are: a row of a product does not depend on the other rows.
//
// One source (panel_gemm_isa.h) is compiled for several instruction sets, the widest that the
// processor has is chosen once. Unlike row_math.h, sets differ in the last bits: the wide ones fuse
// multiplication and addition. Raw pointers, no state; any thread. No alignment is required.
#pragma once

#include <cstdint>

namespace taopd::cpu {

// bfloat16 as its bit pattern.
using Bfloat16Bits = uint16_t;

enum class ElementOrder {
  kRows,     // element (i, j) at data[i * stride + j]
  kColumns,  // element (i, j) at data[i + j * stride]
};

struct PanelGemm {
  const char* name;
  int64_t panel_width;

  // Packs B [K, N] into ceil(N / panel_width) panels of [K][panel_width], the last one filled up
  // with zeros: panels[(p * K + k) * panel_width + j] = B(k, p * panel_width + j).
  void (*pack)(const float* b, ElementOrder order, int64_t stride, int64_t num_k, int64_t num_n,
               float* panels);
  void (*pack_bf16)(const Bfloat16Bits* b, ElementOrder order, int64_t stride, int64_t num_k,
                    int64_t num_n, float* panels);
  // C (row-major, stride c_stride) = or += A B. accumulate: +=.
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
  // to[2 i] = even[i], to[2 i + 1] = odd[i].
  void (*interleave)(const Bfloat16Bits* even, const Bfloat16Bits* odd, int64_t num,
                     Bfloat16Bits* to);
};

// The widest set that this processor has.
const PanelGemm& BestPanelGemm();

// Every set that this processor has, narrowest first; for tests.
int NumPanelGemms();
const PanelGemm& PanelGemmAt(int index);

}  // namespace taopd::cpu
