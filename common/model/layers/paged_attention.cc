#include "common/model/layers/paged_attention.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "common/model/layers/decode_inputs.h"
#include "kernels/cpu/attention/paged_attention.h"
#include "kernels/torch/data_type.h"
#include "kernels/torch/kernel_choice.h"
#include "kernels/torch/layers/norms_and_swiglu.h"
#include "kernels/torch/parallel_loop.h"
#include "kernels/torch/upload.h"
#ifdef TAOPD_CUDA
#include "kernels/torch/attention/cuda_paged_attention.h"
#endif

namespace taopd {
PagedAttentionLayers::PagedAttentionLayers(const PagedBatch& batch, KvPages* pages,
                                           const ModelConfig& config)
    : batch_(batch),
      sequences_(batch.inputs != nullptr ? batch.inputs->sequences() : batch.sequences),
      pages_(pages),
      config_(config) {
  if (batch.inputs != nullptr) {
    // A record of this step is replayed with other values than those on the host now.
    TAOPD_CHECK(batch.sequences.empty());
    positions_T_ = batch.inputs->positions_T();
    num_positions_ = batch.inputs->num_positions();
    cuda_ = batch.inputs->cuda_attention();
    TAOPD_CHECK(cuda_ != nullptr || pages->layout() == KvPages::Layout::kKernel);
    return;
  }
  std::vector<int64_t> positions;
  positions.reserve(batch.token_ids_T.size(0));
  for (const PagedSequence& sequence : batch.sequences) {
    TAOPD_CHECK_EQ(sequence.first_row, static_cast<int64_t>(positions.size()));
    TAOPD_CHECK(sequence.num_rows > 0 && sequence.past_len >= 0);
    const int64_t end = sequence.past_len + sequence.num_rows;
    for (int64_t b = 0; b < KvBlocksFor(end); ++b) {
      TAOPD_CHECK(sequence.block_table[b] >= 0 && sequence.block_table[b] < pages->num_blocks());
    }
    for (int64_t i = sequence.past_len; i < end; ++i) positions.push_back(i);
    num_positions_ = std::max(num_positions_, end);
  }
  TAOPD_CHECK_EQ(static_cast<int64_t>(positions.size()), batch.token_ids_T.size(0));
#ifdef TAOPD_CUDA
  if (pages->layout() == KvPages::Layout::kPlain && UsesCustom(KernelKind::kPagedAttention) &&
      pages->keys(0).is_cuda() && CudaPagedAttention::Supports(pages->keys(0))) {
    cuda_ = std::make_shared<const CudaPagedAttention>(batch.sequences, config.num_attention_heads,
                                                       config.num_key_value_heads, config.head_dim,
                                                       batch.token_ids_T.device());
    positions_T_ = cuda_->PositionsT();
    return;
  }
#endif
  positions_T_ = Upload(at::tensor(positions, at::kLong), batch.token_ids_T.device());
  if (pages->layout() != KvPages::Layout::kPlain) return;
  composed_ = ComposedPagedAttention(batch.sequences, batch.token_ids_T.device());
}

at::Tensor PagedAttentionLayers::RotateAndRun(int64_t layer, const at::Tensor& q_TND,
                                              const at::Tensor& k_TKD, const at::Tensor& v_TKD,
                                              const at::Tensor& q_norm_D,
                                              const at::Tensor& k_norm_D,
                                              const Rotation& rotation) const {
#ifdef TAOPD_CUDA
  if (cuda_ != nullptr) {
    RECORD_USER_SCOPE("taopd::paged_attention");
    return cuda_->Run(
        q_TND, k_TKD, v_TKD,
        {q_norm_D, k_norm_D, config_.rms_norm_eps, rotation.cos_T1D, rotation.sin_T1D},
        {pages_->keys(layer), pages_->values(layer)},
        1.0 / std::sqrt(static_cast<double>(q_TND.size(2))), config_.SlidingWindow(layer));
  }
#endif
  const auto ready = [&](const at::Tensor& x_TAD, const at::Tensor& norm_D) {
    return NormRotateHeads(x_TAD, norm_D, config_.rms_norm_eps, rotation.cos_T1D, rotation.sin_T1D);
  };
  return Run(layer, ready(q_TND, q_norm_D), ready(k_TKD, k_norm_D), v_TKD);
}

at::Tensor PagedAttentionLayers::Run(int64_t layer, const at::Tensor& q_TND,
                                     const at::Tensor& k_TKD, const at::Tensor& v_TKD) const {
  RECORD_USER_SCOPE("taopd::paged_attention");
  TAOPD_CHECK(cuda_ == nullptr);
  if (pages_->layout() == KvPages::Layout::kKernel) return RunKernel(layer, q_TND, k_TKD, v_TKD);
  const at::Tensor &keys = pages_->keys(layer), &values = pages_->values(layer);
  composed_.Append(k_TKD, v_TKD, keys, values);
  return composed_.Attend(q_TND, keys, values, config_.SlidingWindow(layer));
}

at::Tensor PagedAttentionLayers::RunKernel(int64_t layer, const at::Tensor& q_TND,
                                           const at::Tensor& k_TKD, const at::Tensor& v_TKD) const {
  const at::ScalarType stored = pages_->stored_dtype();
  const at::Tensor q = q_TND.to(stored), k = k_TKD.to(stored), v = v_TKD.to(stored);
  const int64_t T = q.size(0), N = q.size(1), D = q.size(2);
  for (const at::Tensor& x : {q, k, v}) TAOPD_CHECK(x.stride(2) == 1 && x.stride(1) == D);
  const KeyValuePool pool = {DataTypeOf(stored), config_.num_key_value_heads, D,
                             pages_->blocks(layer)};
  const int64_t num_sequences = static_cast<int64_t>(sequences_.size());

  AppendKeysValues append;
  append.pool = pool;
  append.sequences = sequences_.data();
  append.num_sequences = num_sequences;
  append.k_TKD = k.const_data_ptr();
  append.k_row_stride = k.stride(0);
  append.v_TKD = v.const_data_ptr();
  append.v_row_stride = v.stride(0);
  cpu::AppendKeysAndValues(append, TorchParallelFor());

  at::Tensor out_TC = at::empty({T, N * D}, q.options());
  PagedAttention attention;
  attention.pool = pool;
  attention.sequences = sequences_.data();
  attention.num_sequences = num_sequences;
  attention.num_heads = N;
  attention.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(D)));
  attention.sliding_window = config_.SlidingWindow(layer);
  attention.q_TND = q.const_data_ptr();
  attention.q_row_stride = q.stride(0);
  attention.out_TND = out_TC.mutable_data_ptr();
  attention.out_row_stride = N * D;
  cpu::AttendToPages(attention, TorchParallelFor());
  return out_TC.to(q_TND.scalar_type());
}

}  // namespace taopd
