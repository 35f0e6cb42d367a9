// The feed-forward block of a layer, differentiable: down(silu(gate(x)) * up(x)), without biases.
//
// On the CPU, float32 and bfloat16 are one function of autograd: gate and up are one product, and
// what the backward pass keeps is x and gate | up; silu(gate) * up is computed again. Everything
// else is a composition of Linear and SwiGlu. The bits are those of inference.
//
// Shapes: T rows, H hidden, I intermediate.
#pragma once

#include <ATen/ATen.h>

#include "kernels/torch/gemm/packed_weight.h"

namespace taopd {

struct GatedMlpWeights {
  at::Tensor gate_IH, up_IH, down_HI;
  // The present weights packed, for the CPU, or null; read during the forward pass only.
  const PackedWeight* packed_gate_up = nullptr;
  const PackedWeight* packed_down = nullptr;
};

// Throws c10::Error if shapes, types or devices do not fit. Any thread may call it.
at::Tensor GatedMlp(const at::Tensor& x_TH, const GatedMlpWeights& weights);

}  // namespace taopd
