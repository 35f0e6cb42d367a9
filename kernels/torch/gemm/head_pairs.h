// The head's products with the processor's bfloat16 instructions (bfloat16_gemm.h), which read one
// of their operands in pairs of adjacent k (VNNI order).
//
// Shapes: C rows of a chunk, H hidden (even), V vocabulary. lm_head is contiguous and bfloat16.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "kernels/cpu/head/logit_gradient.h"
#include "kernels/torch/gemm/bfloat16_gemm.h"
#include "kernels/torch/gemm/head_blocks.h"

namespace taopd {

// Row counts are rounded up to a multiple of this, so that few shapes of the kernel are generated.
inline constexpr int64_t kHeadPairRows = 32;

// Like CpuHeadLogitBlocks (head_gemm_cpu.h).
void PairLogits(const at::Tensor& hidden_CH, const at::Tensor& lm_head_VH,
                const TakeLogitBlock& take, const Bfloat16Gemm& gemm);

// Rounds row_scale_n hidden_n (float32 [C, H], contiguous) to bfloat16 and packs it for
// PairBackward.
at::Tensor PairsOf(const at::Tensor& scaled_hidden_CH);

// Like PanelBackward (head_panels.h), but d_hidden has C rounded up to kHeadPairRows rows; those
// after the first C stay zero.
void PairBackward(const cpu::LogitGradient& d_logits, const at::Tensor& lm_head_VH,
                  const at::Tensor& d_lm_head_VH, int64_t slice, int64_t num_slices,
                  const at::Tensor& hidden_pairs, float* d_hidden, const Bfloat16Gemm& gemm);

}  // namespace taopd
