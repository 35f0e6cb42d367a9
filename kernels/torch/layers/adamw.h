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
  at::Tensor gradient;   // float32 or bfloat16; undefined: this parameter is not updated
  // float32; the parameter itself if that is float32. Undefined: a bfloat16 parameter takes the
  // update itself, with stochastic rounding.
  at::Tensor master;
  at::Tensor exp_avg;     // float32, or bfloat16 with stochastic rounding
  at::Tensor exp_avg_sq;  // of exp_avg's type
  double weight_decay = 0;
  // The random bits of stochastic rounding: those of the elements from first_element on of
  // parameter number `number` (taopd/layers/adamw_math.h).
  int64_t number = 0;
  int64_t first_element = 0;
};

// Updates the parameters, master copies and moments in place, and counts up their versions
// (at::Tensor::_version). Throws c10::Error if a tensor has another shape, type, device or layout
// than it should; nothing is updated then.
void UpdateAdamW(const AdamWSettings& settings, const std::vector<AdamWState>& states);

// Returns the sum of squares of all elements, in float64, in the order of the tensors and, within
// one, of blocks of kAdamWBlock elements: NaN or infinite if an element is. Does not depend on the
// number of threads. The tensors are float32 or bfloat16 and contiguous, of any shapes, on one
// device. Throws as UpdateAdamW does.
double SumOfSquares(const std::vector<at::Tensor>& tensors);

}  // namespace taopd
