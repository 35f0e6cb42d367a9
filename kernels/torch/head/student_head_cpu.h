// The student's head on the CPU: kernels/cpu/head/student_chunk.h between the products of
// head_gemm_cpu.h.
#pragma once

#include <ATen/ATen.h>

#include "kernels/torch/gemm/head_gemm_cpu.h"
#include "kernels/torch/head/student_head.h"

namespace taopd {

// StudentHead (student_head.h) for inputs that it has checked, targets contiguous.
HeadOutput StudentHeadCpu(const at::Tensor& hidden_NH, const at::Tensor& lm_head_VH,
                          const HeadTargets& targets, const HeadOptions& options,
                          const at::Tensor& d_lm_head_VH,
                          const Bfloat16Gemm& bfloat16 = BestBfloat16Gemm());

// Of all tensors that are defined, the rows [begin, begin + num).
HeadTargets NarrowTargets(HeadTargets targets, int64_t begin, int64_t num);

}  // namespace taopd
