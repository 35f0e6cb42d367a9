// The head's products with float32 panels (kernels/cpu/gemm/panel_gemm.h). bfloat16 weights are
// widened block by block in the cache.
//
// Shapes: C rows of a chunk, H hidden, V vocabulary. lm_head is contiguous, float32 or bfloat16.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "kernels/cpu/head/logit_gradient.h"
#include "kernels/torch/gemm/head_blocks.h"

namespace taopd {

// Like CpuHeadLogitBlocks (head_gemm_cpu.h). The bits of a logit depend neither on the other rows
// nor on the number of threads.
void PanelLogits(const at::Tensor& hidden_CH, const at::Tensor& lm_head_VH,
                 const TakeLogitBlock& take);

// Packs row_scale_n hidden_n (float32 [C, H], contiguous) for PanelBackward.
at::Tensor PanelsOf(const at::Tensor& scaled_hidden_CH);

// Adds the products of one of `num_slices` equal parts of the vocabulary: d_hidden [C, H] +=
// d_logits lm_head without the rows' scales, and d_lm_head += d_logits^T hidden if it is defined.
// Slices may run at the same time if each has its own d_hidden.
void PanelBackward(const cpu::LogitGradient& d_logits, const at::Tensor& lm_head_VH,
                   const at::Tensor& d_lm_head_VH, int64_t slice, int64_t num_slices,
                   const at::Tensor& hidden_panels, float* d_hidden);

}  // namespace taopd
