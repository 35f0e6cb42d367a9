// Draws a token from each row of logits as LibTorch operations: the composition of
// taopd/sampling/sample_rows.h, for tensors of any device.
//
// Weights and their sums are float64. A uniform number therefore gives the token that the kernels
// draw, unless it lies within float32 rounding of the boundary between two tokens.
//
// Shapes: S rows, V vocabulary.
#pragma once

#include <ATen/ATen.h>

namespace taopd {

// Returns int32 [4, S] on the device of logits: the ids, whether the row is invalid, and the bits
// of two float32 numbers: the log-prob under the temperature, or under 1 if that is 0, and the
// log-prob under temperature 1. SampleRows (taopd/sampling/sample_rows.h) says what each of them
// means. logits are float32; uniforms_S (float64) and temperatures_S (float32) are on the same
// device.
at::Tensor SampleRowsComposed(const at::Tensor& logits_SV, const at::Tensor& uniforms_S,
                              const at::Tensor& temperatures_S);

}  // namespace taopd
