// The head's matrix products on the CPU: float32 results from float32 or bfloat16 inputs, in blocks
// of the vocabulary that at::parallel_for hands to the threads.
//
// float32, and bfloat16 where the processor has no instructions for it: the panels of
// kernels/cpu/gemm/panel_gemm.h, bfloat16 widened block by block in the cache. bfloat16 with
// AVX-512 BF16 or AMX: ATen's brgemm on bfloat16 pairs (VNNI order), checked against float32 at
// first use.
//
// From panels, a logit does not depend on the other rows of the call, nor on the number of threads:
// bit for bit (brgemm does not promise it).
// d_lm_head does not depend on the number of threads; d_hidden sums one partial result a thread.
// With bfloat16 weights the gradient of the logits is rounded to bfloat16 once (some 0.15 % of
// d_hidden), and so is hidden times a row scale on pairs.
//
// Shapes: C rows of a chunk, H hidden, V vocabulary.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <string>

#include "kernels/cpu/head/logit_gradient.h"

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

// Tokens per block of the vocabulary, but for the last: large enough that a block of d_hidden is
// written once per many products, small enough for the second-level cache. A multiple of every
// tile's rows and of the 32 bfloat16 that AMX multiplies at a time.
inline constexpr int64_t kVocabularyBlock = 96;

// Computes logits = hidden lm_head^T block by block and calls take for each, from any thread: the
// logit of token block * kVocabularyBlock + v and row n is logits[v * stride + n], float32; stride
// is a multiple of 16. `take` may spoil the block.
void CpuHeadLogitBlocks(
    const at::Tensor& hidden_CH, const at::Tensor& lm_head_VH,
    const std::function<void(int64_t block, float* logits, int64_t stride)>& take,
    const Bfloat16Gemm& bfloat16 = BestBfloat16Gemm());

// logits [C, V] (float32, rows contiguous) = hidden lm_head^T.
void CpuHeadLogits(const at::Tensor& hidden_CH, const at::Tensor& lm_head_VH,
                   const at::Tensor& logits_CV, const Bfloat16Gemm& bfloat16 = BestBfloat16Gemm());

// Rows that the products take at a time: chunks should be multiples of it.
int64_t CpuHeadRowTile(const at::Tensor& lm_head_VH, const Bfloat16Gemm& bfloat16);

// Bytes per row that CpuHeadBackward allocates for a chunk.
int64_t CpuHeadBackwardBytesPerRow(int64_t hidden_size);

// Returns d_hidden [C, H] = d_logits lm_head, float32, and d_lm_head (float32 [V, H], skipped when
// undefined) += d_logits^T hidden. One pass over lm_head and d_lm_head. d_logits is in blocks of
// kVocabularyBlock and in the dtype of lm_head, which is float32 or bfloat16.
at::Tensor CpuHeadBackward(const cpu::LogitGradient& d_logits, const at::Tensor& hidden_CH,
                           const at::Tensor& lm_head_VH, const at::Tensor& d_lm_head_VH,
                           const Bfloat16Gemm& bfloat16 = BestBfloat16Gemm());

}  // namespace taopd
