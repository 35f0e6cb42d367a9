#include "common/model/layers/decode_inputs.h"

#include "common/base/check.h"
#include "kernels/torch/kernel_choice.h"
#include "kernels/torch/upload.h"
#ifdef TAOPD_CUDA
#include "kernels/torch/attention/cuda_paged_attention.h"
#endif

namespace taopd {

DecodeInputs::DecodeInputs(const ModelConfig& config, const Shape& shape, const KvPages& pages,
                           at::Device device)
    : shape_(shape),
      num_blocks_(pages.num_blocks()),
      max_blocks_(KvBlocksFor(shape.max_len)),
      block_tables_(static_cast<size_t>(shape.num_rows * max_blocks_)) {
  TAOPD_CHECK(shape.num_rows > 0 && shape.max_len > 0 && shape.num_positions >= shape.max_len);
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  token_ids_T_ = at::zeros({shape.num_rows}, options);
  positions_T_ = at::zeros({shape.num_rows}, options);
  for (int64_t i = 0; i < shape.num_rows; ++i) {
    sequences_.push_back({i, 1, 0, &block_tables_[static_cast<size_t>(i * max_blocks_)]});
  }
  if (pages.layout() == KvPages::Layout::kKernel) return;
#ifdef TAOPD_CUDA
  TORCH_CHECK(UsesCustom(KernelKind::kPagedAttention),
              "CUDA graphs need the paged attention kernels, without which this process runs");
  TORCH_CHECK(CudaPagedAttention::Supports(pages.keys(0)), "the attention of ",
              pages.stored_dtype(), " pages with heads of ", config.head_dim,
              " elements has no CUDA kernel");
  cuda_attention_ =
      std::make_shared<CudaPagedAttention>(sequences_, shape.max_len, config.num_attention_heads,
                                           config.num_key_value_heads, config.head_dim, device);
#else
  TORCH_CHECK(false, "the attention of ", config.architecture, " on ", device,
              " has no kernel in this build");
#endif
}

void DecodeInputs::Set(const std::vector<DecodeRow>& rows) {
  TAOPD_CHECK_EQ(static_cast<int64_t>(rows.size()), shape_.num_rows);
  std::vector<int64_t> token_ids, positions;
  for (size_t i = 0; i < rows.size(); ++i) {
    const DecodeRow& row = rows[i];
    TAOPD_CHECK(row.position >= 0 && row.position < shape_.max_len);
    token_ids.push_back(row.token_id);
    positions.push_back(row.position);
    int32_t* const table = &block_tables_[i * static_cast<size_t>(max_blocks_)];
    for (int64_t b = 0; b < KvBlocksFor(row.position + 1); ++b) {
      TAOPD_CHECK(row.block_table[b] >= 0 && row.block_table[b] < num_blocks_);
      table[b] = row.block_table[b];
    }
    sequences_[i].past_len = row.position;
  }
  // The host waits for none of the copies, which come before the next work on ATen's stream.
  const auto refill = [](const at::Tensor& to_T, const std::vector<int64_t>& values) {
    to_T.copy_(Pinned(at::tensor(values, at::kLong), to_T.device()), /*non_blocking=*/true);
  };
  refill(token_ids_T_, token_ids);
#ifdef TAOPD_CUDA
  if (cuda_attention_ != nullptr) {
    cuda_attention_->Refill(sequences_);
    positions_T_.copy_(cuda_attention_->PositionsT());
    return;
  }
#endif
  refill(positions_T_, positions);
}

}  // namespace taopd
