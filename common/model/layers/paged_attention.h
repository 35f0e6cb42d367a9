// Causal attention of rows whose sequences keep their keys and values in pages. The CPU uses the
// kernels of taopd/attention/paged_attention.h; CUDA, for float32 and bfloat16, uses those of
// taopd/attention/paged_attention_cuda.h; ATen serves the other cases. The data that every layer
// needs is computed once per forward pass.
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
  // Rows of one sequence, for ATen.
  struct PlainChunk {
    int64_t first_row, num_rows, past_len;
    at::Tensor blocks;  // int64 ids of the blocks that hold keys up to the chunk's end
  };
  // All sequences with one row, for ATen: R rows, padded to L keys.
  struct PlainDecode {
    at::Tensor rows_R;
    at::Tensor blocks_RB;
    at::Tensor kv_lens_R;
    int64_t kv_len = 0;  // L
  };

  void PreparePlain();
  at::Tensor RunKernel(int64_t layer, const at::Tensor& q_TND, const at::Tensor& k_TKD,
                       const at::Tensor& v_TKD) const;
  at::Tensor RunPlain(int64_t layer, const at::Tensor& q_TND, const at::Tensor& k_TKD,
                      const at::Tensor& v_TKD) const;
  at::Tensor PlainChunkAttention(const PlainChunk& chunk, int64_t layer,
                                 const at::Tensor& q_TND) const;
  at::Tensor PlainDecodeAttention(int64_t layer, const at::Tensor& q_TND) const;

  const PagedBatch& batch_;
  const std::vector<PagedSequence>& sequences_;  // sequences of the batch, or of its inputs
  KvPages* const pages_;
  const ModelConfig& config_;
  at::Tensor positions_T_;
  int64_t num_positions_ = 1;

  // Null unless there are kernels for the plain layout.
  std::shared_ptr<const CudaPagedAttention> cuda_;

  // Set only if ATen computes attention in the plain layout.
  at::Tensor block_of_row_T_, place_of_row_T_;
  std::vector<PlainChunk> chunks_;
  PlainDecode decode_;
};

}  // namespace taopd
