// The keys and values of sequences in pages: blocks of kBlockTokens consecutive positions of one
// sequence, for all layers. A sequence's block table says which block holds which positions; who
// owns which block is the scheduler's business (common/engine/scheduling/block_pool.h).
//
// On the CPU a block has the layout of the attention kernels (taopd/attention/paged_attention.h);
// float16 models keep float32 keys and values there. Elsewhere keys and values are plain tensors.
//
// The memory is not initialised, and pages that were never written are not resident. No result of
// attention depends on a place that the block table's sequence did not write. Not thread-safe: the
// engine's thread owns the pages, and shares them during a forward pass with threads that write
// other blocks.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "common/model/config/model_config.h"
#include "taopd/attention/paged_attention.h"

namespace taopd {

class KvPages {
 public:
  enum class Layout {
    kKernel,  // float32 or bfloat16 blocks of the CPU's kernels
    kPlain,   // tensors for ATen
  };
  // The layout that this device uses.
  static Layout LayoutOf(at::Device device);
  // The type in which a model of this dtype keeps keys and values.
  static at::ScalarType StoredDtype(at::ScalarType dtype, Layout layout);
  // The bytes of one block of all layers.
  static int64_t BytesPerBlock(const ModelConfig& config, at::ScalarType dtype, Layout layout);

  // Pages for every layer. REQUIRES: num_blocks > 0.
  KvPages(const ModelConfig& config, int64_t num_blocks, at::ScalarType dtype, at::Device device,
          Layout layout);
  // Pages of one layer that all layers use in turn. They serve sequences that one forward pass
  // computes as a whole: nothing remains of them afterwards.
  static KvPages ForWholeSequences(const ModelConfig& config, int64_t num_blocks,
                                   at::ScalarType dtype, at::Device device, Layout layout);

  int64_t num_blocks() const { return num_blocks_; }
  bool for_whole_sequences() const { return for_whole_sequences_; }
  Layout layout() const { return layout_; }
  at::ScalarType stored_dtype() const { return stored_dtype_; }
  // Copies a block of every layer.
  void CopyBlock(int32_t from, int32_t to);

  // kKernel: the blocks of a layer, one after the other.
  void* blocks(int64_t layer) const;
  // kPlain: [num_blocks, key-value heads, kBlockTokens, head_dim].
  const at::Tensor& keys(int64_t layer) const { return keys_[layer % NumStored()]; }
  const at::Tensor& values(int64_t layer) const { return values_[layer % NumStored()]; }

 private:
  KvPages(const ModelConfig& config, int64_t num_layers, int64_t num_blocks, at::ScalarType dtype,
          at::Device device, Layout layout);
  int64_t NumStored() const { return static_cast<int64_t>(keys_.size()); }

  int64_t num_blocks_;
  bool for_whole_sequences_ = false;
  Layout layout_;
  at::ScalarType stored_dtype_;
  std::vector<at::Tensor> keys_;    // kKernel: both keys and values, bytes [num_blocks, size]
  std::vector<at::Tensor> values_;  // kKernel: empty
};

}  // namespace taopd
