// The row work of the student's head as ATen operations, for devices without a kernel of their own.
// The O(k) numbers of a row go to the CPU, through the same objective functions, and back: one
// synchronisation per chunk.
#pragma once

#include <ATen/ATen.h>

#include "kernels/torch/head/student_head.h"

namespace taopd {

// logits_CV (float32, any device) becomes w d loss / d logits. loss_C and metrics_CM are float32 on
// the CPU and filled in. The targets are those of the chunk's rows, already checked.
void StudentRowsAten(const HeadTargets& targets, const HeadOptions& options, at::Tensor logits_CV,
                     at::Tensor loss_C, at::Tensor metrics_CM);

}  // namespace taopd
