// The head's backward products on the CPU for gradients of the logits with few nonzero columns per
// row: rows of lm_head and of its gradient are added one by one instead of multiplied as matrices.
//
// Shapes: C rows of a chunk, H hidden, V vocabulary, k support.
#pragma once

#include <ATen/ATen.h>

#include "kernels/cpu/head/logit_gradient.h"

namespace taopd {

// Returns whether CpuHeadBackwardSparse with k + 1 columns per row is cheaper than CpuHeadBackward.
bool SparseBackwardIsCheaper(int64_t k, int64_t vocab_size);

// Does the same as CpuHeadBackward (kernels/torch/gemm/head_gemm_cpu.h) for a gradient that is zero
// except for the entries, whose values are not scaled. Sums run in a fixed order, so the bits do
// not depend on the number of threads.
at::Tensor CpuHeadBackwardSparse(const cpu::LogitEntries& d_logits, const at::Tensor& hidden_CH,
                                 const at::Tensor& lm_head_VH, const at::Tensor& d_lm_head_VH);

}  // namespace taopd
