// The matrix products of a language-model head on the CPU: float32 results from float32 or bfloat16
// inputs, in blocks of the vocabulary that ParallelLoop hands to the threads.
//
// There are two ways to compute them:
//   - float32 panels (head_panels.h), which widen bfloat16 weights block by block in the cache: for
//     float32, and for bfloat16 on processors without instructions for it;
//   - packed products of bfloat16 pairs (head_pairs.h): for bfloat16 on processors with AVX-512
//     BF16 or AMX.
// Only tests pass `gemm`, to choose how bfloat16 is multiplied.
//
// The bits of the results have these dependencies:
//   - A logit depends only on its own row of hidden and on lm_head, not on the other rows of the
//     call or on the number of threads.
//   - d_lm_head and d_hidden do not depend on the number of threads.
// With pairs, a logit has the same bits as in inference with packed weights (packed_weight.h).
//
// With bfloat16 weights, the gradient of the logits is rounded to bfloat16 once, which changes
// d_hidden by about 0.15 %. With pairs, hidden times the row's scale is rounded, too.
//
// Any thread may call these functions. Tensors are on the CPU. The functions throw c10::Error if
// shapes do not match. Shapes: C rows of a chunk, H hidden, V vocabulary.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "kernels/cpu/gemm/packed_gemm.h"
#include "kernels/cpu/head/logit_gradient.h"
#include "kernels/torch/gemm/head_blocks.h"

namespace taopd {

// Computes logits = hidden lm_head^T block by block and calls `take` for each block, from any
// thread. The logit of token block * kVocabularyBlock + v and row n is logits[v * stride + n],
// float32, where stride is a multiple of 16. `take` may overwrite the block, which is reused after
// it returns.
void CpuHeadLogitBlocks(const at::Tensor& hidden_CH, const at::Tensor& lm_head_VH,
                        const TakeLogitBlock& take,
                        const cpu::PackedGemm& gemm = cpu::BestPackedGemm());

// Writes logits [C, V] = hidden lm_head^T in float32. The elements of a row of logits are adjacent.
void CpuHeadLogits(const at::Tensor& hidden_CH, const at::Tensor& lm_head_VH,
                   const at::Tensor& logits_CV,
                   const cpu::PackedGemm& gemm = cpu::BestPackedGemm());

// Returns whether the float32 gradient of lm_head stays in a core's cache. The blocks are then too
// few to share evenly, so threads should share the rows, with a call for each part.
bool IsSmallHead(const at::Tensor& lm_head_VH);

// Returns how many rows the products compute together. Chunks are fastest in multiples of this
// number.
int64_t CpuHeadRowTile(const at::Tensor& lm_head_VH, const cpu::PackedGemm& gemm);

// Returns the bytes that CpuHeadBackward allocates for each row of a chunk.
int64_t CpuHeadBackwardBytesPerRow(const at::Tensor& lm_head_VH);

// Returns whether computing logits a second time takes less time than another pass over lm_head
// and d_lm_head. The exps of a chunk then need not be kept.
bool CpuHeadRecomputes(const at::Tensor& lm_head_VH, const cpu::PackedGemm& gemm);

// Returns d_hidden [C, H] = d_logits lm_head as float32 and adds d_logits^T hidden to d_lm_head
// (float32 [V, H], contiguous; may be undefined). Reads lm_head and updates d_lm_head in one pass.
// d_logits must be in blocks of kVocabularyBlock and in lm_head's dtype, float32 or bfloat16. If
// its exps are null, `compute_exps` computes them block by block, from the block's logits; this
// needs CpuHeadRecomputes.
at::Tensor CpuHeadBackward(const cpu::LogitGradient& d_logits, const at::Tensor& hidden_CH,
                           const at::Tensor& lm_head_VH, const at::Tensor& d_lm_head_VH,
                           const cpu::PackedGemm& gemm = cpu::BestPackedGemm(),
                           const ComputeBlockExps& compute_exps = {});

}  // namespace taopd
