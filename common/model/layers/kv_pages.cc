#include "common/model/layers/kv_pages.h"

#include <c10/core/InferenceMode.h>

#include "common/base/check.h"
#include "kernels/torch/data_type.h"
#include "kernels/torch/kernel_choice.h"

namespace taopd {
namespace {

int64_t BytesPerLayerBlock(const ModelConfig& config, at::ScalarType stored,
                           KvPages::Layout layout) {
  if (layout == KvPages::Layout::kKernel) {
    return taopd::BytesPerBlock(DataTypeOf(stored), config.num_key_value_heads, config.head_dim);
  }
  return 2 * config.num_key_value_heads * config.head_dim * kBlockTokens *
         static_cast<int64_t>(c10::elementSize(stored));
}

}  // namespace

KvPages::Layout KvPages::LayoutOf(at::Device device) {
  return device.is_cpu() && UsesCustom(KernelKind::kPagedAttention) ? Layout::kKernel
                                                                    : Layout::kPlain;
}

int64_t KvPages::BytesPerBlock(const ModelConfig& config, at::ScalarType dtype, Layout layout) {
  return config.num_hidden_layers * BytesPerLayerBlock(config, StoredDtype(dtype, layout), layout);
}

KvPages KvPages::ForWholeSequences(const ModelConfig& config, int64_t num_blocks,
                                   at::ScalarType dtype, at::Device device, Layout layout) {
  KvPages pages(config, /*num_layers=*/1, num_blocks, dtype, device, layout);
  pages.for_whole_sequences_ = true;
  return pages;
}

KvPages::KvPages(const ModelConfig& config, int64_t num_layers, int64_t num_blocks,
                 at::ScalarType dtype, at::Device device, Layout layout)
    : num_blocks_(num_blocks), layout_(layout), stored_dtype_(StoredDtype(dtype, layout)) {
  TAOPD_CHECK_GT(num_blocks, 0);
  // These must not be inference tensors even if they are made under InferenceMode, because
  // inference tensors could not be written outside of it.
  const c10::InferenceMode normal(false);
  const auto options = at::TensorOptions().device(device);
  for (int64_t i = 0; i < num_layers; ++i) {
    if (layout == Layout::kKernel) {
      keys_.push_back(at::empty({num_blocks, BytesPerLayerBlock(config, stored_dtype_, layout)},
                                options.dtype(at::kByte)));
    } else {
      // ATen's attention multiplies masked values by zero, and zero times NaN is NaN, so the memory
      // is zeroed.
      const auto shape = {num_blocks, config.num_key_value_heads, kBlockTokens, config.head_dim};
      keys_.push_back(at::zeros(shape, options.dtype(stored_dtype_)));
      values_.push_back(at::zeros(shape, options.dtype(stored_dtype_)));
    }
  }
}

void* KvPages::blocks(int64_t layer) const {
  TAOPD_CHECK(layout_ == Layout::kKernel);
  return keys_[layer % NumStored()].mutable_data_ptr();
}

void KvPages::CopyBlock(int32_t from, int32_t to) {
  for (std::vector<at::Tensor>* stored : {&keys_, &values_}) {
    for (at::Tensor& blocks : *stored) blocks.select(0, to).copy_(blocks.select(0, from));
  }
}

}  // namespace taopd
