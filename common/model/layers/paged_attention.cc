#include "common/model/layers/paged_attention.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/check.h"
#include "common/model/layers/decode_inputs.h"
#include "common/model/layers/visible_keys.h"
#include "kernels/cpu/attention/paged_attention.h"
#include "kernels/torch/data_type.h"
#include "kernels/torch/layers/norms_and_swiglu.h"
#include "kernels/torch/parallel_loop.h"
#ifdef TAOPD_CUDA
#include "kernels/torch/attention/cuda_paged_attention.h"
#endif

namespace taopd {
namespace {

at::Tensor Upload(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(values, at::kLong).to(device);
}

}  // namespace

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
  positions_T_ = Upload(positions, batch.token_ids_T.device());
  if (pages->layout() != KvPages::Layout::kPlain) return;
#ifdef TAOPD_CUDA
  if (CudaPagedAttention::Supports(pages->keys(0))) {
    cuda_ = std::make_shared<const CudaPagedAttention>(batch.sequences, config.num_attention_heads,
                                                       config.num_key_value_heads, config.head_dim,
                                                       batch.token_ids_T.device());
    return;
  }
#endif
  PreparePlain();
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
  return RunPlain(layer, q_TND, k_TKD, v_TKD);
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
  cpu::Run(append, TorchParallelFor());

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
  cpu::Run(attention, TorchParallelFor());
  return out_TC.to(q_TND.scalar_type());
}

// ---- By ATen ----

void PagedAttentionLayers::PreparePlain() {
  const at::Device device = batch_.token_ids_T.device();
  std::vector<int64_t> block_of_row, place_of_row;
  std::vector<int64_t> decode_rows, decode_lens;
  int64_t max_blocks = 0;
  for (const PagedSequence& sequence : batch_.sequences) {
    const int64_t end = sequence.past_len + sequence.num_rows;
    for (int64_t i = sequence.past_len; i < end; ++i) {
      block_of_row.push_back(sequence.block_table[i / kBlockTokens]);
      place_of_row.push_back(i % kBlockTokens);
    }
    if (sequence.num_rows == 1) {
      decode_rows.push_back(sequence.first_row);
      decode_lens.push_back(end);
      max_blocks = std::max(max_blocks, KvBlocksFor(end));
      continue;
    }
    const std::vector<int64_t> blocks(sequence.block_table,
                                      sequence.block_table + KvBlocksFor(end));
    chunks_.push_back(
        {sequence.first_row, sequence.num_rows, sequence.past_len, Upload(blocks, device)});
  }
  block_of_row_T_ = Upload(block_of_row, device);
  place_of_row_T_ = Upload(place_of_row, device);
  if (decode_rows.empty()) return;
  std::vector<int64_t> tables;
  for (const PagedSequence& sequence : batch_.sequences) {
    if (sequence.num_rows != 1) continue;
    const int64_t num_blocks = KvBlocksFor(sequence.past_len + 1);
    tables.insert(tables.end(), sequence.block_table, sequence.block_table + num_blocks);
    tables.resize(tables.size() + max_blocks - num_blocks, sequence.block_table[0]);
  }
  decode_.rows_R = Upload(decode_rows, device);
  decode_.kv_lens_R = Upload(decode_lens, device);
  decode_.blocks_RB =
      Upload(tables, device).view({static_cast<int64_t>(decode_rows.size()), max_blocks});
  decode_.kv_len = max_blocks * kBlockTokens;
}

at::Tensor PagedAttentionLayers::RunPlain(int64_t layer, const at::Tensor& q_TND,
                                          const at::Tensor& k_TKD, const at::Tensor& v_TKD) const {
  const auto append = [&](const at::Tensor& x_TKD, const at::Tensor& stored_BKPD) {
    stored_BKPD.transpose(1, 2).index_put_({block_of_row_T_, place_of_row_T_}, x_TKD);
  };
  append(k_TKD, pages_->keys(layer));
  append(v_TKD, pages_->values(layer));
  at::Tensor out_TC = at::empty({q_TND.size(0), q_TND.size(1) * q_TND.size(2)}, q_TND.options());
  for (const PlainChunk& chunk : chunks_) {
    out_TC.narrow(0, chunk.first_row, chunk.num_rows)
        .copy_(PlainChunkAttention(chunk, layer, q_TND));
  }
  if (decode_.kv_len > 0) out_TC.index_copy_(0, decode_.rows_R, PlainDecodeAttention(layer, q_TND));
  return out_TC;
}

at::Tensor PagedAttentionLayers::PlainChunkAttention(const PlainChunk& chunk, int64_t layer,
                                                     const at::Tensor& q_TND) const {
  const int64_t N = q_TND.size(1), D = q_TND.size(2);
  // [1, K, L, D]
  const auto gathered = [&](const at::Tensor& stored_BKPD) {
    const at::Tensor x_BKPD = stored_BKPD.index_select(0, chunk.blocks);
    return x_BKPD.transpose(0, 1).reshape({1, x_BKPD.size(1), -1, D});
  };
  const at::Tensor keys = gathered(pages_->keys(layer)), values = gathered(pages_->values(layer));
  std::vector<at::Tensor> out;
  for (int64_t start = 0; start < chunk.num_rows; start += kQueryBlock) {
    const int64_t num_queries = std::min(kQueryBlock, chunk.num_rows - start);
    const VisibleKeys visible = KeysOfBlock(chunk.past_len + start, num_queries,
                                            config_.SlidingWindow(layer), q_TND.options());
    const at::Tensor q_1NQD =
        q_TND.narrow(0, chunk.first_row + start, num_queries).transpose(0, 1).unsqueeze(0);
    const at::Tensor out_1NQD = at::scaled_dot_product_attention(
        q_1NQD, keys.narrow(2, visible.first, visible.length),
        values.narrow(2, visible.first, visible.length), visible.mask_QL, 0.0,
        /*is_causal=*/false, std::nullopt, /*enable_gqa=*/N != keys.size(1));
    out.push_back(out_1NQD.squeeze(0).transpose(0, 1).reshape({num_queries, N * D}));
  }
  return out.size() == 1 ? out[0] : at::cat(out);
}

at::Tensor PagedAttentionLayers::PlainDecodeAttention(int64_t layer,
                                                      const at::Tensor& q_TND) const {
  const int64_t R = decode_.rows_R.size(0), N = q_TND.size(1), D = q_TND.size(2);
  const int64_t K = pages_->keys(layer).size(1), L = decode_.kv_len;
  const at::Tensor columns_1L =
      at::arange(L, at::TensorOptions().dtype(at::kLong).device(q_TND.device())).unsqueeze(0);
  const at::Tensor kv_lens_R1 = decode_.kv_lens_R.unsqueeze(1);
  at::Tensor hidden_RL = columns_1L >= kv_lens_R1;
  if (const int64_t window = config_.SlidingWindow(layer); window > 0) {
    hidden_RL = hidden_RL.logical_or(columns_1L < kv_lens_R1 - window);
  }
  // The contents after a sequence's end are arbitrary, and zero times NaN is NaN.
  const auto gathered = [&](const at::Tensor& stored_BKPD) {
    return stored_BKPD.index_select(0, decode_.blocks_RB.reshape({-1}))
        .view({R, -1, K, kBlockTokens, D})
        .transpose(1, 2)
        .reshape({R, K, L, D})
        .masked_fill_(hidden_RL.view({R, 1, L, 1}), 0);
  };
  const at::Tensor mask_R11L =
      at::zeros({R, L}, q_TND.options())
          .masked_fill_(hidden_RL, -std::numeric_limits<double>::infinity())
          .view({R, 1, 1, L});
  // The N / K query heads that share a key-value head become queries of one head.
  const at::Tensor q_RKGD = q_TND.index_select(0, decode_.rows_R).reshape({R, K, N / K, D});
  return at::scaled_dot_product_attention(q_RKGD, gathered(pages_->keys(layer)),
                                          gathered(pages_->values(layer)), mask_R11L)
      .reshape({R, N * D});
}

}  // namespace taopd
