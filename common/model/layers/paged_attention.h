// Causal attention of rows whose sequences keep their keys and values in pages. The CPU uses the
// kernels of taopd/attention/paged_attention.h; CUDA, for float32 and bfloat16, uses those of
// taopd/attention/paged_attention_cuda.h. A composition of ATen operations
// (kernels/torch/composed/paged_attention.h) serves the other cases, and processes that do without
// the kernels. The data that every layer needs is computed once per forward pass.
//
// Shapes: T rows of the batch, N heads, K key-value heads, D head_dim.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "common/model/decoder.h"
#include "common/model/layers/kv_pages.h"
#include "common/model/layers/rope.h"
#include "kernels/torch/composed/paged_attention.h"

namespace taopd {

class CudaPagedAttention;  // kernels/torch/attention/cuda_paged_attention.h

class PagedAttentionLayers {
 public:
  // `batch`, `pages` and `config` must outlive this object. REQUIRES: the batch is well formed, and
  // the block tables name blocks of `pages` for all positions.
  PagedAttentionLayers(const PagedBatch& batch, KvPages* pages, const ModelConfig& config);

  const at::Tensor& positions_T() const { return positions_T_; }
  int64_t num_positions() const { return num_positions_; }  // all positions are below this

  // Prepares the rows' queries and keys (NormRotateHeads in
  // kernels/torch/layers/norms_and_swiglu.h, with the norms of a layer's heads, which may be
  // undefined) and then does the same as Run. On CUDA the two are one pass.
  at::Tensor RotateAndRun(int64_t layer, const at::Tensor& q_TND, const at::Tensor& k_TKD,
                          const at::Tensor& v_TKD, const at::Tensor& q_norm_D,
                          const at::Tensor& k_norm_D, const Rotation& rotation) const;
  // Appends the rows' keys and values to the pages of a layer, and returns the attention of the
  // rows, [T, N * D]. Queries and keys are already rotated. The rows of v may be apart.
  // REQUIRES: there are no CUDA kernels for the pages.
  at::Tensor Run(int64_t layer, const at::Tensor& q_TND, const at::Tensor& k_TKD,
                 const at::Tensor& v_TKD) const;

 private:
  at::Tensor RunKernel(int64_t layer, const at::Tensor& q_TND, const at::Tensor& k_TKD,
                       const at::Tensor& v_TKD) const;

  const PagedBatch& batch_;
  const std::vector<PagedSequence>& sequences_;  // sequences of the batch, or of its inputs
  KvPages* const pages_;
  const ModelConfig& config_;
  at::Tensor positions_T_;
  int64_t num_positions_ = 1;

  // Null unless there are kernels for the plain layout.
  std::shared_ptr<const CudaPagedAttention> cuda_;

  // Used for the plain layout if cuda_ is null.
  ComposedPagedAttention composed_;
};

}  // namespace taopd
