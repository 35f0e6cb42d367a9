// AdamW as LibTorch operations: the composition of taopd/layers/adamw.h, for tensors of any device.
// The arithmetic is that of taopd/layers/adamw_math.h, with the same random bits; its last bits may
// differ.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "taopd/layers/adamw.h"

namespace taopd {

// A parameter with its state. All tensors have its shape and are contiguous.
struct AdamWState {
  at::Tensor parameter;  // float32 or bfloat16
  at::Tensor gradient;   // float32 or bfloat16; undefined: the parameter is not updated
  // float32; the parameter itself if that is float32. If undefined, the update goes to the bfloat16
  // parameter directly, with stochastic rounding.
  at::Tensor master;
  at::Tensor exp_avg;     // float32, or bfloat16 with stochastic rounding
  at::Tensor exp_avg_sq;  // of the type of exp_avg
  double weight_decay = 0;
  // Stochastic rounding uses the random bits of the elements from first_element on of parameter
  // number `number` (taopd/layers/adamw_math.h).
  int64_t number = 0;
  int64_t first_element = 0;
};

// Updates the parameter, master copy and moments in place. REQUIRES: there is a gradient.
void UpdateAdamWComposed(const AdamWSettings& settings, const AdamWState& state);

// Returns the sum of squares of all elements in float64.
double SumOfSquaresComposed(const std::vector<at::Tensor>& tensors);

}  // namespace taopd
