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

#include <cstdint>

#include "taopd/head/student_targets.h"
#include "taopd/objective/objective.h"

namespace taopd {

struct ComposedStudentHead {
  // float32, bfloat16 or float16, of one type and device.
  at::Tensor hidden_NH, lm_head_VH;
  // Host memory, also for tensors of another device. Ids are in [0, V); -1 is padding.
  StudentTargets targets;
  ObjectiveTerms objective;
  double temperature = 1;
  bool top_k_metrics = false;
  // The memory that the logits of a chunk and their copies may take. At least one row is computed
  // at a time.
  int64_t workspace_bytes = 0;
  // float32, contiguous; the gradient is added to it. Undefined: not computed.
  at::Tensor d_lm_head_VH;
};

struct ComposedStudentHeadOutput {
  at::Tensor loss_N;       // float32, on hidden's device
  at::Tensor metrics_NM;   // float32, on the CPU
  at::Tensor d_hidden_NH;  // of hidden's type and device
};

// Throws c10::Error for a support that a row may not have, after which d_lm_head is unspecified.
ComposedStudentHeadOutput StudentHeadComposed(const ComposedStudentHead& head);

}  // namespace taopd
