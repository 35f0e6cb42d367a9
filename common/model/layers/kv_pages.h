// The keys and values of sequences in pages: blocks of kBlockTokens consecutive positions of one
// sequence, for all layers. A sequence's block table says which block holds which positions; the
// scheduler decides which sequence owns which block (common/engine/scheduling/block_pool.h).
//
// On the CPU, a block has the layout of the attention kernels (taopd/attention/paged_attention.h),
// and float16 models keep float32 keys and values. On other devices, and in processes that do
// without the kernels (kernels/torch/kernel_choice.h), keys and values are plain tensors.
//
// Blocks in the kernels' layout are not initialized, and take no memory until they are written;
// plain tensors are zeroed. Attention depends only on places that the sequence of the block table
// has written. Not thread-safe: the engine's thread owns the pages, and during a forward pass
// shares them with threads that write other blocks.
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
  // Returns the layout that this device uses.
  static Layout LayoutOf(at::Device device);
  // Returns the type in which a model of this dtype keeps keys and values.
  static at::ScalarType StoredDtype(at::ScalarType dtype, Layout layout) {
    return layout == Layout::kKernel && dtype != at::kBFloat16 ? at::kFloat : dtype;
  }
  // Returns the bytes of one block over all layers.
  static int64_t BytesPerBlock(const ModelConfig& config, at::ScalarType dtype, Layout layout);

  // Makes pages for every layer. REQUIRES: num_blocks > 0.
  KvPages(const ModelConfig& config, int64_t num_blocks, at::ScalarType dtype, at::Device device,
          Layout layout)
      : KvPages(config, config.num_hidden_layers, num_blocks, dtype, device, layout) {}
  // Makes pages of a single layer, which all layers use in turn. Their contents are not kept, so a
  // forward pass must compute whole sequences.
  static KvPages ForWholeSequences(const ModelConfig& config, int64_t num_blocks,
                                   at::ScalarType dtype, at::Device device, Layout layout);

  int64_t num_blocks() const { return num_blocks_; }
  bool for_whole_sequences() const { return for_whole_sequences_; }
  Layout layout() const { return layout_; }
  at::ScalarType stored_dtype() const { return stored_dtype_; }
  // Copies a block of every layer.
  void CopyBlock(int32_t from, int32_t to);

  // For kKernel: the blocks of a layer, one after the other.
  void* blocks(int64_t layer) const;
  // For kPlain: [num_blocks, key-value heads, kBlockTokens, head_dim].
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
  std::vector<at::Tensor> keys_;    // kKernel: keys and values together, bytes [num_blocks, size]
  std::vector<at::Tensor> values_;  // kKernel: empty
};

}  // namespace taopd
