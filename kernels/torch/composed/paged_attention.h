// Attention over plain pages as LibTorch operations: the composition of
// taopd/attention/paged_attention_cuda.h, for tensors of any device. Keys and values of each
// sequence are gathered from its pages; LibTorch's attention does the rest.
//
// Shapes: T rows of the batch, N heads, K key-value heads, D head size; B blocks of P =
// kBlockTokens positions.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "kernels/torch/composed/chunk_attention.h"
#include "taopd/attention/paged_attention.h"

namespace taopd {

// The data of one batch that all layers need, on the device. Any thread may call its functions, but
// calls that share pages must not overlap.
class ComposedPagedAttention {
 public:
  // An empty object. Only assignment and destruction are allowed.
  ComposedPagedAttention() = default;
  // Reads the sequences' block tables and keeps no reference to them. REQUIRES: the rows of the
  // sequences follow one another, and the tables have entries for all their positions.
  ComposedPagedAttention(const std::vector<PagedSequence>& sequences, at::Device device);

  // Writes the rows' keys and values to the pages.
  void Append(const at::Tensor& k_TKD, const at::Tensor& v_TKD, const at::Tensor& keys_BKPD,
              const at::Tensor& values_BKPD) const;
  // Returns the attention of the rows, [T, N * D], with a scale of 1 / sqrt(D). A sliding_window of
  // 0 means none. Queries are already rotated, and the rows' keys and values are in the pages. The
  // contents of a page after a sequence's end are never used, even if they are NaN.
  at::Tensor Attend(const at::Tensor& q_TND, const at::Tensor& keys_BKPD,
                    const at::Tensor& values_BKPD, int64_t sliding_window) const;

 private:
  // All sequences with one row: R rows, padded to L keys.
  struct Decode {
    at::Tensor rows_R;
    at::Tensor blocks_RB;
    at::Tensor kv_lens_R;
    int64_t kv_len = 0;  // L
  };

  void LayOutDecode(const std::vector<PagedSequence>& sequences, at::Device device);
  at::Tensor AttendDecode(const at::Tensor& q_TND, const at::Tensor& keys_BKPD,
                          const at::Tensor& values_BKPD, int64_t sliding_window) const;

  at::Tensor block_of_row_T_, place_of_row_T_;
  std::vector<PagedChunk> chunks_;
  Decode decode_;
};

}  // namespace taopd
