// The feed-forward block of a layer, differentiable: down(silu(gate(x)) * up(x)), without biases.
//
// On the CPU, for float32 and bfloat16, the block is one autograd function: gate and up are one
// product, and the backward pass keeps x and gate | up and computes silu(gate) * up again. In all
// other cases it is a composition of Linear and SwiGlu. The bits are those of inference.
//
// Shapes: T rows, H hidden, I intermediate.
#pragma once

#include <ATen/ATen.h>

#include "kernels/torch/gemm/lora/low_rank.h"
#include "kernels/torch/gemm/packed_weight.h"

namespace taopd {

struct GatedMlpWeights {
  at::Tensor gate_IH, up_IH, down_HI;
  // The current weights packed for the CPU with their adapters, or null. Read only during the
  // forward pass.
  const PackedWeight* packed_gate_up = nullptr;
  const PackedWeight* packed_down = nullptr;
  LowRankAdapter gate_adapter = {}, up_adapter = {}, down_adapter = {};  // may be undefined
};

// Throws c10::Error if shapes, types or devices do not match. Any thread may call it.
at::Tensor GatedMlp(const at::Tensor& x_TH, const GatedMlpWeights& weights);

}  // namespace taopd
