// The head's matrix products on the CPU: float32 results from float32 or bfloat16 inputs, in blocks
// of the vocabulary that at::parallel_for hands to the threads.
//
// float32, and bfloat16 where the processor has no instructions for it: the panels of
// kernels/cpu/panel_gemm.h, bfloat16 widened block by block in the cache. bfloat16 with AVX-512
// BF16 or AMX: ATen's brgemm on bfloat16 pairs (VNNI order), checked against float32 at first use.
//
// From panels, a logit does not depend on the other rows of the call, nor on the number of threads:
// bit for bit (brgemm does not promise it).
// d_lm_head does not depend on the number of threads; d_hidden sums one partial result a thread.
//
// Shapes: C rows of a chunk, H hidden, V vocabulary.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>

namespace taopd {

// C [M, N] (+)= A [M, K] B [K, N], row-major with strides in elements; K even, B in VNNI order:
// element (k, n) at b[(k / 2 * ldb + n) * 2 + k % 2].
using Bfloat16Multiply = void (*)(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb,
                                  int64_t ldc, bool accumulate, const at::BFloat16* a,
                                  const at::BFloat16* b, float* c);

struct Bfloat16Gemm {
  Bfloat16Multiply multiply = nullptr;  // null: none, widen instead
  void (*release)() = nullptr;          // at the end of a thread's work; may be null
};

// brgemm where this processor has it and it agrees with float32 on a small product; otherwise none,
// with the reason logged once where it was expected to work.
const Bfloat16Gemm& BestBfloat16Gemm();

// What computes the products of this dtype here, for benchmarks: "float32 panels, avx2".
std::string CpuHeadGemmName(at::ScalarType dtype);

// Bytes per row, beyond the logits, that CpuHeadBackward allocates for a chunk.
int64_t CpuHeadBackwardBytesPerRow(int64_t hidden_size);

// logits [C, V] (float32, rows contiguous) = hidden lm_head^T.
void CpuHeadLogits(const at::Tensor& hidden_CH, const at::Tensor& lm_head_VH,
                   const at::Tensor& logits_CV, const Bfloat16Gemm& bfloat16 = BestBfloat16Gemm());

// Returns d_hidden [C, H] = d_logits lm_head, float32, and d_lm_head (float32 [V, H], skipped when
// undefined) += d_logits^T hidden. One pass over lm_head and d_lm_head.
at::Tensor CpuHeadBackward(const at::Tensor& d_logits_CV, const at::Tensor& hidden_CH,
                           const at::Tensor& lm_head_VH, const at::Tensor& d_lm_head_VH,
                           const Bfloat16Gemm& bfloat16 = BestBfloat16Gemm());

}  // namespace taopd
