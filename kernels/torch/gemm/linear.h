// x W^T + b, differentiable, for every device and type.
//
// This folder has the matrix products of the CPU, in two families that differ in what they pack:
//
//   weights   The layers, and the head in inference: weights are packed once, in panels of 64
//             outputs, and read by many calls. packed_weight.h owns the copy, packed_product.h
//             multiplies on several threads, and linear_parts.h adds the gradients. The loops are
//             kernels/cpu/gemm/packed_gemm.h.
//   rows      The head in training, which changes after every step and whose logits must not exist
//             as a whole: lm_head is read in place, in blocks of the vocabulary, and the rows of a
//             chunk are packed. head_gemm_cpu.h chooses between float32 panels (head_panels.h,
//             whose loops are kernels/cpu/gemm/panel_gemm.h) and the packed products of bfloat16
//             pairs (head_pairs.h).
//
// float32 panels sum in another order than packed products, so a float32 head has other bits in
// training than in inference. The logits of pairs have the same bits in both.
//
// On the CPU, float32 and bfloat16 use the packed products of packed_product.h in both directions:
// a row of the result has the same bits as in inference (PackedWeight), whatever the other rows
// are, and gradients do not depend on the number of threads. The gradient of a weight is added to
// its gradient target, if it has one (gradient_target.h). float16 is widened to float32 on a CPU
// that cannot multiply it. In all other cases this is at::linear. With an adapter (low_rank.h), the
// CPU computes with the merged weight; elsewhere x W^T + scale (x A^T) B^T is computed, in the type
// of x.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "kernels/torch/gemm/packed_weight.h"

namespace taopd {

// x is [..., in], weight [out, in] and bias [out] or undefined, all on one device and of one
// floating type. Returns [..., out] of that type. Throws c10::Error if shapes, types or devices do
// not match. Any thread may call it.
at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  const PackedWeight* packed = nullptr, const LowRankAdapter& adapter = {});

// One of several linear layers with the same input.
struct LinearPart {
  at::Tensor weight;
  at::Tensor bias;              // may be undefined
  LowRankAdapter adapter = {};  // may be undefined
};
// Returns the results of the parts side by side: [..., sum of out]. On the CPU, one product
// computes them all. `packed`, which only the CPU uses, is null or contains the parts' current
// weights, adapters and biases in this order; it is read only during the call.
at::Tensor FusedLinear(const at::Tensor& x, const std::vector<LinearPart>& parts,
                       const PackedWeight* packed = nullptr);

}  // namespace taopd
