// The row work of the teacher's head as ATen operations: the composition of
// kernels/torch/head/scoring_head.h. Only O(k) numbers per row leave the device, unless dense rows
// are requested.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "kernels/torch/scoring_output.h"

namespace taopd {

// Fills in rows [first, first + C) of *output, whose tensors are allocated. logits_CV is float32 on
// any device, and its contents are overwritten. sampled_N and candidates_NM are on the CPU and have
// all rows, or are undefined.
void ScoringRowsComposed(const at::Tensor& logits_CV, const at::Tensor& sampled_N,
                         const at::Tensor& candidates_NM, const ScoringOptions& options,
                         int64_t first, ScoringOutput* output);

// Returns the ids of the k largest of each row in descending order, with ties by the lower id:
// int64 [C, k] on the device of the logits. NaN counts as -inf.
at::Tensor TopKComposed(const at::Tensor& logits_CV, int64_t k);

}  // namespace taopd
