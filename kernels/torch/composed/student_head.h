// The student's head with its loss as LibTorch operations: the composition of
// kernels/torch/head/student_head.h for tensors of any device.
//
// Per chunk of rows, the device computes the logits, the sums over the complement of the support
// and the exponentials. O(k) numbers of each row come to the host, which evaluates the objective in
// float64 with the source that all heads share (taopd/head/student_row.h); k + 1 entries of each
// row go back. Every objective therefore has a composition, and each chunk waits for the device
// once.
//
// Shapes: N rows, H hidden, V vocabulary, k support size, M kNumHeadMetrics.
#pragma once

#include <ATen/ATen.h>

#include "kernels/torch/student_output.h"

namespace taopd {

// StudentHead (kernels/torch/head/student_head.h) for inputs that it has checked and targets that
// are contiguous. Throws c10::Error for a support that a row may not have, after which d_lm_head is
// unspecified.
HeadOutput StudentHeadComposed(const at::Tensor& hidden_NH, const at::Tensor& lm_head_VH,
                               const HeadTargets& targets, const HeadOptions& options,
                               const at::Tensor& d_lm_head_VH);

}  // namespace taopd
