#include "kernels/torch/composed/chunk_attention.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "kernels/torch/composed/visible_keys.h"
#include "kernels/torch/upload.h"

namespace taopd {
namespace {

// The largest head size of LibTorch's FlashAttention on CUDA.
constexpr int64_t kMaxFlashHeadSize = 256;

bool HasFlash(const PagedChunk& chunk, const at::Tensor& q_TND, int64_t sliding_window) {
  if (sliding_window > 0 && chunk.past_len + chunk.num_rows > sliding_window) return false;
  if (q_TND.is_cpu()) return true;
  const int64_t D = q_TND.size(2);
  return (q_TND.scalar_type() == at::kBFloat16 || q_TND.scalar_type() == at::kHalf) && D % 8 == 0 &&
         D <= kMaxFlashHeadSize;
}

struct Attended {
  at::Tensor out_1NQD;
  at::Tensor log_sum_exp_1NQ;  // float32
};

// Query head n uses key-value head n / (N / K) without copies of the keys.
Attended Flash(const at::Tensor& q_1NQD, const at::Tensor& k_1KLD, const at::Tensor& v_1KLD,
               bool is_causal, double scale) {
  if (q_1NQD.is_cpu()) {
    const auto result = at::_scaled_dot_product_flash_attention_for_cpu(
        q_1NQD, k_1KLD, v_1KLD, 0.0, is_causal, /*attn_mask=*/{}, scale);
    return {std::get<0>(result), std::get<1>(result)};
  }
  const auto result = at::_scaled_dot_product_flash_attention(
      q_1NQD, k_1KLD, v_1KLD, 0.0, is_causal, /*return_debug_mask=*/false, scale);
  return {std::get<0>(result), std::get<1>(result)};
}

at::Tensor Merge(const Attended& a, const Attended& b) {
  const at::Tensor sum_1NQ = at::logaddexp(a.log_sum_exp_1NQ, b.log_sum_exp_1NQ);
  const auto part = [&](const Attended& x) {
    return x.out_1NQD * (x.log_sum_exp_1NQ - sum_1NQ).exp().unsqueeze(3);
  };
  return part(a) + part(b);
}

at::Tensor InOneCall(const PagedChunk& chunk, const at::Tensor& q_1NQD, const at::Tensor& k_1KLD,
                     const at::Tensor& v_1KLD, double scale) {
  const int64_t past = chunk.past_len, Q = chunk.num_rows;
  const Attended own =
      Flash(q_1NQD, k_1KLD.narrow(2, past, Q), v_1KLD.narrow(2, past, Q), true, scale);
  if (past == 0) return own.out_1NQD;
  const Attended before =
      Flash(q_1NQD, k_1KLD.narrow(2, 0, past), v_1KLD.narrow(2, 0, past), false, scale);
  return Merge(before, own);
}

at::Tensor InBlocks(const PagedChunk& chunk, const at::Tensor& q_1NQD, const at::Tensor& k_1KLD,
                    const at::Tensor& v_1KLD, double scale, int64_t sliding_window) {
  std::vector<at::Tensor> out;
  for (int64_t start = 0; start < chunk.num_rows; start += kQueryBlock) {
    const int64_t num_queries = std::min(kQueryBlock, chunk.num_rows - start);
    const VisibleKeys visible =
        KeysOfBlock(chunk.past_len + start, num_queries, sliding_window, q_1NQD.options());
    out.push_back(at::scaled_dot_product_attention(
        q_1NQD.narrow(2, start, num_queries), k_1KLD.narrow(2, visible.first, visible.length),
        v_1KLD.narrow(2, visible.first, visible.length), visible.mask_QL, 0.0,
        /*is_causal=*/false, scale, /*enable_gqa=*/q_1NQD.size(1) != k_1KLD.size(1)));
  }
  return out.size() == 1 ? out[0] : at::cat(out, 2);
}

}  // namespace

PagedChunk MakePagedChunk(const PagedSequence& sequence, at::Device device) {
  const std::vector<int64_t> blocks(
      sequence.block_table,
      sequence.block_table + KvBlocksFor(sequence.past_len + sequence.num_rows));
  return {sequence.first_row, sequence.num_rows, sequence.past_len,
          Upload(at::tensor(blocks, at::kLong), device)};
}

void AttendPagedChunk(const PagedChunk& chunk, const at::Tensor& q_TND, const at::Tensor& keys_BKPD,
                      const at::Tensor& values_BKPD, double scale, int64_t sliding_window,
                      const at::Tensor& out_TC) {
  const int64_t N = q_TND.size(1), D = q_TND.size(2);
  const auto gathered = [&](const at::Tensor& stored_BKPD) {
    const at::Tensor x_BKPD = stored_BKPD.index_select(0, chunk.blocks);
    return x_BKPD.transpose(0, 1).reshape({1, x_BKPD.size(1), -1, D});
  };
  const at::Tensor k_1KLD = gathered(keys_BKPD), v_1KLD = gathered(values_BKPD);
  const at::Tensor q_1NQD =
      q_TND.narrow(0, chunk.first_row, chunk.num_rows).transpose(0, 1).unsqueeze(0);
  const at::Tensor out_1NQD = HasFlash(chunk, q_TND, sliding_window)
                                  ? InOneCall(chunk, q_1NQD, k_1KLD, v_1KLD, scale)
                                  : InBlocks(chunk, q_1NQD, k_1KLD, v_1KLD, scale, sliding_window);
  out_TC.narrow(0, chunk.first_row, chunk.num_rows)
      .view({chunk.num_rows, N, D})
      .copy_(out_1NQD.squeeze(0).transpose(0, 1));
}

}  // namespace taopd
