// x W^T + b, differentiable, for every device and type.
//
// On the CPU, float32 and bfloat16 are multiplied by the packed products of packed_product.h, in
// both directions: a row of the result has the same bits as in inference (PackedWeight), whatever
// the other rows are, and gradients do not depend on the number of threads. The gradient of a
// weight is added to its gradient target, if it has one (gradient_target.h). float16 is widened to
// float32 on a CPU that cannot multiply it. Everywhere else this is at::linear.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "kernels/torch/gemm/packed_weight.h"

namespace taopd {

// x is [..., in], weight [out, in] and bias [out] or undefined, all of one device and floating
// type. Returns [..., out] of that type. Throws c10::Error if shapes, types or devices do not fit.
// Any thread may call it.
at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  const PackedWeight* packed = nullptr);

// One of several linear layers with the same input.
struct LinearPart {
  at::Tensor weight;
  at::Tensor bias;  // may be undefined
};
// The results of the parts side by side: [..., sum of out]. On the CPU one product computes them
// all. `packed`, which only the CPU uses, holds the parts' present weights and biases in this
// order, or is null; it is read during the call only.
at::Tensor FusedLinear(const at::Tensor& x, const std::vector<LinearPart>& parts,
                       const PackedWeight* packed = nullptr);

}  // namespace taopd
