// x W^T + b, differentiable, for every device and type.
//
// On a CPU without instructions for bfloat16 (or float16) products, ATen multiplies such matrices
// several times more slowly than float32 ones. There the weights are widened to float32, bfloat16
// block by block in each thread's cache (head_gemm_cpu.h): products are exact, sums are float32,
// and the result is rounded once. Everywhere else this is at::linear.
#pragma once

#include <ATen/ATen.h>

namespace taopd {

// x is [..., in], weight [out, in] and bias [out] or undefined, all of one device and floating
// type. Returns [..., out] of that type. Gradients are those of at::linear. A row of the result
// may depend on the number of rows in its last bits, as at::linear's does; PackedWeight's does not.
// Throws c10::Error if shapes, types or devices do not fit. Any thread may call it.
at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

// Whether Linear widens tensors of this type on this processor.
bool WidensOnCpu(at::ScalarType dtype);

// Makes WidensOnCpu answer `widens` for 16-bit types, so that a test covers both ways on any
// processor. Must not be called while another thread is inside Linear.
void SetWidensOnCpuForTesting(bool widens);

}  // namespace taopd
