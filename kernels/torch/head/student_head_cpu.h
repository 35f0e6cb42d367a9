// The student's head on the CPU: the rows of kernels/cpu/head/student_chunk.h between the matrix
// products of kernels/torch/gemm/head_gemm_cpu.h.
#pragma once

#include <ATen/ATen.h>

#include "kernels/torch/gemm/head_gemm_cpu.h"
#include "kernels/torch/head/student_head.h"

namespace taopd {

// StudentHead (student_head.h) for inputs that it has checked and targets that are contiguous.
// Tests pass `gemm` to choose how bfloat16 is multiplied.
HeadOutput StudentHeadCpu(const at::Tensor& hidden_NH, const at::Tensor& lm_head_VH,
                          const HeadTargets& targets, const HeadOptions& options,
                          const at::Tensor& d_lm_head_VH,
                          const cpu::PackedGemm& gemm = cpu::BestPackedGemm());

}  // namespace taopd
