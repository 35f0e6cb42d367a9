// x W^T + b, differentiable, for every device and type.
//
// On a CPU without instructions for bfloat16 (float16) products ATen multiplies such matrices
// several times slower than float32 ones. There the weights are widened to float32, for bfloat16 a
// block of rows at a time in each thread's cache (head_gemm_cpu.h): exact products, float32 sums,
// one rounding at the end. Elsewhere it is at::linear.
#pragma once

#include <ATen/ATen.h>

namespace taopd {

// x [..., in], weight [out, in], bias [out] or undefined, all of one device and floating type; the
// result [..., out] has that type. Gradients as at::linear's. A row of the result depends on the
// number of rows as at::linear's float32 one does (see RowsForStableGemm). Any thread.
at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

// Whether Linear widens tensors of this type on this processor. Set for tests, which then hold on
// any processor; not while another thread computes.
bool WidensOnCpu(at::ScalarType dtype);
void SetWidensOnCpuForTesting(bool widens);

}  // namespace taopd
