// The head's backward products on the CPU for logit gradients with few nonzero columns a row: rows
// of lm_head and of its gradient are touched one by one instead of multiplied as matrices.
//
// Shapes: C rows of a chunk, H hidden, V vocabulary, k support.
#pragma once

#include <ATen/ATen.h>

#include "kernels/cpu/head/logit_gradient.h"

namespace taopd {

// Whether CpuHeadBackwardSparse with k + 1 columns a row is cheaper than CpuHeadBackward.
bool SparseBackwardIsCheaper(int64_t k, int64_t vocabulary_size);

// What CpuHeadBackward (head_gemm_cpu.h) returns and adds, where the logits' gradient is zero but
// for the entries, in their own units (a scale of 1). Sums run in a fixed order: the same bits for
// any number of threads.
at::Tensor CpuHeadBackwardSparse(const cpu::LogitEntries& d_logits, const at::Tensor& hidden_CH,
                                 const at::Tensor& lm_head_VH, const at::Tensor& d_lm_head_VH);

}  // namespace taopd
