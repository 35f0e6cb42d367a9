// The low-rank adapter of a linear layer (LoRA; Hu et al., arXiv:2106.09685), and its merge into
// the layer's weight:
//
//   W' = W + scale B A
//
// On the CPU, the layer computes with W' in every pass: PackedWeight merges the adapter while it
// packs W, and rounds W' once to W's type. The layer therefore has the same bits for a row in
// generation, in scoring and in training. No matrix of W's size is kept for the adapter.
//
// Shapes: a layer of K inputs and N outputs, W [N, K]; R rank. Any thread may call these functions.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace taopd {

struct LowRankAdapter {
  at::Tensor a_RK;   // float32, contiguous; undefined if the layer has no adapter
  at::Tensor b_NR;   // float32, contiguous
  double scale = 0;  // alpha / rank; not 0 if there is an adapter
  bool defined() const { return a_RK.defined(); }
};

// Throws c10::Error unless the adapter, if there is one, fits the weight.
void CheckAdapter(const LowRankAdapter& adapter, const at::Tensor& weight_NK);

// Computes rows of W' on the CPU. An element is W's number plus scale times a sum over R in
// float32, whose order depends only on R and on the processor.
class MergedRows {
 public:
  // Copies B and refers to the weight, which is contiguous, and to A.
  // REQUIRES: the adapter is defined and fits the weight.
  MergedRows(const at::Tensor& weight_NK, const LowRankAdapter& adapter);
  // Writes rows [first, first + num) as float32, before they are rounded to W's type.
  void Compute(int64_t first, int64_t num, float* rows) const;

 private:
  at::Tensor weight_NK_, a_RK_;
  at::Tensor scaled_b_RN_;  // scale B, transposed
};

// Returns W' in W's type, on its device. On the CPU it has the bits of the packed numbers.
at::Tensor MergeAdapter(const at::Tensor& weight_NK, const LowRankAdapter& adapter);

}  // namespace taopd
