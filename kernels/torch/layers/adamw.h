// AdamW over a model's parameters and the sum of squares of their gradients, each in one call on
// tensors of one device (taopd/layers/adamw.h). They run on the CPU, and on CUDA in builds with
// TAOPD_CUDA. Calls on the same tensors must not overlap.
#pragma once

#include <ATen/ATen.h>

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

// Updates the parameters, master copies and moments in place, and increments their versions
// (at::Tensor::_version). Throws c10::Error if a tensor has the wrong shape, type, device or
// layout; nothing is updated then.
void UpdateAdamW(const AdamWSettings& settings, const std::vector<AdamWState>& states);

// Returns the sum of squares of all elements in float64, in the order of the tensors and, within
// each, of blocks of kAdamWBlock elements. It is NaN or infinite if an element is, and does not
// depend on the number of threads. The tensors are float32 or bfloat16 and contiguous, of any
// shapes, on one device. Throws as UpdateAdamW does.
double SumOfSquares(const std::vector<at::Tensor>& tensors);

}  // namespace taopd
