// AdamW over a model's parameters and the norm of their gradients, each in one call on tensors of
// one device (taopd/layers/adamw.h): kernels/cpu, and kernels/cuda where that is built. Not
// thread-safe for calls on the same tensors.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "taopd/layers/adamw.h"

namespace taopd {

// All tensors of a parameter have its shape and are contiguous.
struct AdamWState {
  at::Tensor parameter;   // float32 or bfloat16
  at::Tensor gradient;    // float32 or bfloat16; undefined: this parameter is left as it is
  at::Tensor master;      // float32; the parameter itself where that is float32
  at::Tensor exp_avg;     // float32
  at::Tensor exp_avg_sq;  // float32
  double weight_decay = 0;
};

// One update in place. Throws c10::Error where a tensor has another shape, type, device or layout.
void UpdateAdamW(const AdamWSettings& settings, const std::vector<AdamWState>& states);

// L2 norm of all gradients together, NaN or infinite where an element is; 0 without gradients. Does
// not depend on the number of threads.
double GradientNorm(const std::vector<AdamWState>& states);

}  // namespace taopd
