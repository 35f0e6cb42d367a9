// The head's products with bfloat16 instructions, by the products with packed panels
// (kernels/cpu/gemm/packed_gemm.h): lm_head and the gradient of the logits are read row by row in
// place, and the rows of hidden are packed.
//
// A logit is summed over H in the order of packed products. That order depends only on H, so a
// logit has the same bits as in inference.
//
// Shapes: C rows of a chunk, H hidden, V vocabulary. lm_head is contiguous and bfloat16.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "kernels/cpu/gemm/packed_gemm.h"
#include "kernels/cpu/head/logit_gradient.h"
#include "kernels/torch/gemm/head_blocks.h"

namespace taopd {

// The logits of a chunk, block by block. Packs hidden, and refers to lm_head and `gemm`, which
// multiplies pairs. Several threads may call Compute at the same time.
class PairLogitBlocks {
 public:
  PairLogitBlocks(const at::Tensor& hidden_CH, const at::Tensor& lm_head_VH,
                  const cpu::PackedGemm& gemm);

  // Returns a buffer of zeros for the logits of one block.
  at::Tensor MakeBuffer() const;
  int64_t stride() const { return BlockStride(num_rows_); }
  // Writes the logits of a block to logits[v * stride() + n].
  void Compute(int64_t block, float* logits) const;

 private:
  const HeadWeights weights_;
  const cpu::PackedGemm& gemm_;
  const int64_t num_rows_;
  at::Tensor panels_;
};

// Like CpuHeadLogitBlocks (head_gemm_cpu.h). In all of these functions, `gemm` multiplies pairs.
void PairLogits(const at::Tensor& hidden_CH, const at::Tensor& lm_head_VH,
                const TakeLogitBlock& take, const cpu::PackedGemm& gemm);

// Rounds row_scale_n hidden_n (float32 [C, H], contiguous) to bfloat16 and packs it for
// PairBackward.
at::Tensor PairsOf(const at::Tensor& scaled_hidden_CH);

// Like PanelBackward (head_panels.h). If d_logits has no exps, `compute_exps` computes them from
// `logits`.
void PairBackward(const cpu::LogitGradient& d_logits, const at::Tensor& lm_head_VH,
                  const at::Tensor& d_lm_head_VH, int64_t slice, int64_t num_slices,
                  const at::Tensor& hidden_pairs, float* d_hidden, const cpu::PackedGemm& gemm,
                  const PairLogitBlocks* logits, const ComputeBlockExps& compute_exps);

}  // namespace taopd
