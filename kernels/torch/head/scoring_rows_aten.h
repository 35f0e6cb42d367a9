// The row work of the teacher's head as ATen operations, for devices without a kernel of their own.
// Only O(k) numbers per row leave the device.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "kernels/torch/head/scoring_head.h"

namespace taopd {

// Fills rows [first, first + C) of *output, whose tensors are allocated, from logits_CV (float32,
// any device), which it spoils. sampled_N and candidates_NM: on the CPU, of all rows, or undefined.
void ScoringRowsAten(const at::Tensor& logits_CV, const at::Tensor& sampled_N,
                     const at::Tensor& candidates_NM, const ScoringOptions& options, int64_t first,
                     ScoringOutput* output);

// The ids of the k largest of each row, largest first, ties by lowest id: int64 [C, k] on the
// logits' device. NaN counts as -inf.
at::Tensor TopKAten(const at::Tensor& logits_CV, int64_t k);

}  // namespace taopd
