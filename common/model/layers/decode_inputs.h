// The inputs of a decode step that differ from step to step: the ids of its rows, their positions
// and their block tables, in memory at fixed addresses. A step that is recorded once (a CUDA graph)
// is computed again by writing the next rows here and replaying the record.
//
// A step has T rows of T sequences, one each. Not thread-safe.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "common/model/config/model_config.h"
#include "common/model/layers/kv_pages.h"

namespace taopd {

class CudaPagedAttention;  // kernels/torch/attention/cuda_paged_attention.h

// The next token of a sequence that has `position` tokens before it.
struct DecodeRow {
  int64_t token_id = 0;
  int64_t position = 0;
  const int32_t* block_table = nullptr;  // for all positions up to this one; read immediately
};

class DecodeInputs {
 public:
  struct Shape {
    int64_t num_rows = 1;  // T
    int64_t max_len = 1;   // the largest number of positions of a sequence
    // The number of positions for which the model's rotary tables are made: at least max_len. If it
    // is the largest number that any step needs, the tables never move.
    int64_t num_positions = 1;
  };

  // Makes the inputs of steps on `pages`, and keeps no reference to them. Until Set is called,
  // every row is the first one of a sequence in block 0. Throws c10::Error on CUDA if attention has
  // no kernels for the pages (CudaPagedAttention::Supports).
  DecodeInputs(const ModelConfig& config, const Shape& shape, const KvPages& pages,
               at::Device device);
  DecodeInputs(const DecodeInputs&) = delete;
  DecodeInputs& operator=(const DecodeInputs&) = delete;

  // Writes the rows of the next step. REQUIRES: there are num_rows rows, positions are below
  // max_len, and the tables name blocks of the pages.
  void Set(const std::vector<DecodeRow>& rows);

  // These functions return the same memory in every step.
  const at::Tensor& token_ids_T() const { return token_ids_T_; }  // int64, on the device
  const at::Tensor& positions_T() const { return positions_T_; }  // int64, on the device
  int64_t num_positions() const { return shape_.num_positions; }
  // For the CPU's kernels.
  const std::vector<PagedSequence>& sequences() const { return sequences_; }
  // For CUDA's kernels; null on a CPU.
  std::shared_ptr<const CudaPagedAttention> cuda_attention() const { return cuda_attention_; }

 private:
  const Shape shape_;
  const int64_t num_blocks_;
  const int64_t max_blocks_;  // entries of a block table
  at::Tensor token_ids_T_, positions_T_;
  std::vector<int32_t> block_tables_;  // [T, max_blocks]; sequences_ points into it
  std::vector<PagedSequence> sequences_;
  std::shared_ptr<CudaPagedAttention> cuda_attention_;
};

}  // namespace taopd
