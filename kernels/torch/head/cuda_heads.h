// The heads on CUDA tensors through kernels/cuda. They use ATen's stream and cuBLASLt handle of the
// tensors' device. Built only with TAOPD_CUDA, and in tests of the emulated run-time, where tensors
// are on the CPU; student_head.h and scoring_head.h decide when these functions run.
#pragma once

#include <ATen/ATen.h>

#include "kernels/torch/device_kernels.h"
#include "kernels/torch/head/scoring_head.h"
#include "kernels/torch/head/student_head.h"

namespace taopd {

// Returns whether the kernel takes supports of k ids with these options. With top_k_metrics, it
// takes at most kMaxTopKMetrics, or the whole vocabulary.
bool StudentKernelTakes(const HeadOptions& options, int64_t k);

// StudentHead for CUDA tensors whose shapes, dtypes and devices have been checked, whose targets
// are contiguous, and whose k StudentKernelTakes. The kernels check ids. Waits for the results,
// which the metrics on the CPU need anyway. The workspace has options.workspace_bytes, or enough
// for kMinStudentRows rows (taopd/head/logit_chunk.h) if that is more.
HeadOutput StudentHeadCuda(const at::Tensor& hidden_NH, const at::Tensor& lm_head_VH,
                           const HeadTargets& targets, const HeadOptions& options,
                           at::Tensor d_lm_head_VH, const DeviceKernels& kernels = LinkedKernels());

// ScoreRowsOfHead for float32 or bfloat16 CUDA tensors with top_k <= kMaxScoringTopK and without
// dense rows. Fills in *output, whose tensors are allocated on the CPU. sampled_N and candidates_NM
// are on the CPU with ids in range, or undefined. Waits for the results.
void ScoreRowsOfHeadCuda(const at::Tensor& hidden_NH, const at::Tensor& lm_head_VH,
                         const at::Tensor& sampled_N, const at::Tensor& candidates_NM,
                         const ScoringOptions& options, ScoringOutput* output,
                         const DeviceKernels& kernels = LinkedKernels());

}  // namespace taopd
