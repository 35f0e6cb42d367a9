// AdamW over a model's parameters and the sum of squares of their gradients, each in one call on
// tensors of one device (taopd/layers/adamw.h). They run on the CPU, and on CUDA in builds with
// TAOPD_CUDA. Calls on the same tensors must not overlap.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "kernels/torch/composed/adamw.h"

namespace taopd {

// Updates the parameters, master copies and moments in place, and increments their versions
// (at::Tensor::_version). Throws c10::Error if a tensor has the wrong shape, type, device or
// layout; nothing is updated then.
void UpdateAdamW(const AdamWSettings& settings, const std::vector<AdamWState>& states);

// Returns the sum of squares of all elements in float64. The kernels add up the tensors in order
// and, within each, blocks of kAdamWBlock elements, so their sum does not depend on the number of
// threads; the composition adds up pieces of the tensors in order, and each piece in ATen's order.
// The sum is NaN or infinite if an element is. The tensors are float32 or bfloat16 and contiguous,
// of any shapes, on one device. Throws as UpdateAdamW does.
double SumOfSquares(const std::vector<at::Tensor>& tensors);

}  // namespace taopd
