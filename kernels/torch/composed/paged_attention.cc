#include "kernels/torch/composed/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/torch/upload.h"

namespace taopd {
namespace {

at::Tensor UploadIds(const std::vector<int64_t>& values, at::Device device) {
  return Upload(at::tensor(values, at::kLong), device);
}

}  // namespace

ComposedPagedAttention::ComposedPagedAttention(const std::vector<PagedSequence>& sequences,
                                               at::Device device) {
  std::vector<int64_t> block_of_row, place_of_row;
  for (const PagedSequence& sequence : sequences) {
    const int64_t end = sequence.past_len + sequence.num_rows;
    for (int64_t i = sequence.past_len; i < end; ++i) {
      block_of_row.push_back(sequence.block_table[i / kBlockTokens]);
      place_of_row.push_back(i % kBlockTokens);
    }
    if (sequence.num_rows == 1) continue;
    chunks_.push_back(MakePagedChunk(sequence, device));
  }
  block_of_row_T_ = UploadIds(block_of_row, device);
  place_of_row_T_ = UploadIds(place_of_row, device);
  LayOutDecode(sequences, device);
}

void ComposedPagedAttention::LayOutDecode(const std::vector<PagedSequence>& sequences,
                                          at::Device device) {
  std::vector<int64_t> rows, lens, tables;
  int64_t max_blocks = 0;
  for (const PagedSequence& sequence : sequences) {
    if (sequence.num_rows != 1) continue;
    rows.push_back(sequence.first_row);
    lens.push_back(sequence.past_len + 1);
    max_blocks = std::max(max_blocks, KvBlocksFor(sequence.past_len + 1));
  }
  if (rows.empty()) return;
  for (const PagedSequence& sequence : sequences) {
    if (sequence.num_rows != 1) continue;
    const int64_t num_blocks = KvBlocksFor(sequence.past_len + 1);
    tables.insert(tables.end(), sequence.block_table, sequence.block_table + num_blocks);
    tables.resize(tables.size() + max_blocks - num_blocks, sequence.block_table[0]);
  }
  decode_.rows_R = UploadIds(rows, device);
  decode_.kv_lens_R = UploadIds(lens, device);
  decode_.blocks_RB =
      UploadIds(tables, device).view({static_cast<int64_t>(rows.size()), max_blocks});
  decode_.kv_len = max_blocks * kBlockTokens;
}

void ComposedPagedAttention::Append(const at::Tensor& k_TKD, const at::Tensor& v_TKD,
                                    const at::Tensor& keys_BKPD,
                                    const at::Tensor& values_BKPD) const {
  const auto append = [&](const at::Tensor& x_TKD, const at::Tensor& stored_BKPD) {
    stored_BKPD.transpose(1, 2).index_put_({block_of_row_T_, place_of_row_T_}, x_TKD);
  };
  append(k_TKD, keys_BKPD);
  append(v_TKD, values_BKPD);
}

at::Tensor ComposedPagedAttention::Attend(const at::Tensor& q_TND, const at::Tensor& keys_BKPD,
                                          const at::Tensor& values_BKPD,
                                          int64_t sliding_window) const {
  at::Tensor out_TC = at::empty({q_TND.size(0), q_TND.size(1) * q_TND.size(2)}, q_TND.options());
  const double scale = 1 / std::sqrt(static_cast<double>(q_TND.size(2)));
  for (const PagedChunk& chunk : chunks_) {
    AttendPagedChunk(chunk, q_TND, keys_BKPD, values_BKPD, scale, sliding_window, out_TC);
  }
  if (decode_.kv_len > 0) {
    out_TC.index_copy_(0, decode_.rows_R,
                       AttendDecode(q_TND, keys_BKPD, values_BKPD, sliding_window));
  }
  return out_TC;
}

at::Tensor ComposedPagedAttention::AttendDecode(const at::Tensor& q_TND,
                                                const at::Tensor& keys_BKPD,
                                                const at::Tensor& values_BKPD,
                                                int64_t sliding_window) const {
  const int64_t R = decode_.rows_R.size(0), N = q_TND.size(1), D = q_TND.size(2);
  const int64_t K = keys_BKPD.size(1), L = decode_.kv_len;
  const at::Tensor columns_1L =
      at::arange(L, at::TensorOptions().dtype(at::kLong).device(q_TND.device())).unsqueeze(0);
  const at::Tensor kv_lens_R1 = decode_.kv_lens_R.unsqueeze(1);
  at::Tensor hidden_RL = columns_1L >= kv_lens_R1;
  if (sliding_window > 0) {
    hidden_RL = hidden_RL.logical_or(columns_1L < kv_lens_R1 - sliding_window);
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
  return at::scaled_dot_product_attention(q_RKGD, gathered(keys_BKPD), gathered(values_BKPD),
                                          mask_R11L)
      .reshape({R, N * D});
}

}  // namespace taopd
