// AdamW as LibTorch operations: the composition of taopd/layers/adamw.h, for tensors of any device.
// The arithmetic is that of taopd/layers/adamw_math.h, with the same random bits; its last bits may
// differ.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "taopd/layers/adamw.h"

namespace taopd {

// One parameter with its state, as AdamWTensor (taopd/layers/adamw.h) describes it: contiguous
// tensors of one size.
struct ComposedAdamW {
  at::Tensor gradient;             // float32 or bfloat16
  at::Tensor master;               // float32; undefined: the update goes to `bfloat16`
  at::Tensor exp_avg, exp_avg_sq;  // float32, or bfloat16 with stochastic rounding
  at::Tensor bfloat16;             // undefined if the parameter is float32
  double weight_decay = 0;
  int64_t number = 0;
  int64_t first_element = 0;
};

void UpdateAdamWComposed(const AdamWSettings& settings, const ComposedAdamW& state);

// Returns the sum of squares of all elements in float64.
double SumOfSquaresComposed(const std::vector<at::Tensor>& tensors);

}  // namespace taopd
