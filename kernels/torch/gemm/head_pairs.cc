#include "kernels/torch/gemm/head_pairs.h"

#include <algorithm>

#include "kernels/cpu/layers/layer_loops.h"

namespace taopd {
namespace {

using at::BFloat16;

// Products are cut to at most this many columns, so that a block of B stays in the cache.
constexpr int64_t kPairColumns = 64;

// out[(k / 2 * num_n + n) * 2 + k % 2] = B(k, n) for k < padded_k, with zeros outside of
// [num_k, num_n]. B(k, n) is at b[k * k_step + n * n_step].
void PackPairs(const BFloat16* b, int64_t k_step, int64_t n_step, int64_t num_k, int64_t num_n,
               int64_t padded_k, int64_t padded_n, BFloat16* out) {
  for (int64_t k = 0; k < padded_k; k += 2) {
    BFloat16* to = out + k * padded_n;
    const BFloat16* even = b + k * k_step;
    const int64_t present = std::clamp<int64_t>(num_k - k, 0, 2);
    const int64_t columns = present == 2 ? num_n : 0;
    if (n_step == 1) {
      cpu::BestPanelGemm().interleave(Bits(even), Bits(even + k_step), columns, Bits(to));
    } else {
      for (int64_t n = 0; n < columns; ++n) {
        to[2 * n] = even[n * n_step];
        to[2 * n + 1] = even[k_step + n * n_step];
      }
    }
    for (int64_t n = columns; n < padded_n; ++n) {
      to[2 * n] = present > 0 && n < num_n ? even[n * n_step] : BFloat16(0);
      to[2 * n + 1] = BFloat16(0);
    }
  }
}

void MultiplyInColumns(const Bfloat16Gemm& gemm, int64_t m, int64_t n, int64_t k, int64_t lda,
                       int64_t ldb, int64_t ldc, bool accumulate, const BFloat16* a,
                       const BFloat16* b, float* c) {
  for (int64_t begin = 0; begin < n; begin += kPairColumns) {
    gemm.multiply(m, std::min(kPairColumns, n - begin), k, lda, ldb, ldc, accumulate, a,
                  b + 2 * begin, c + begin);
  }
}

void Release(const Bfloat16Gemm& gemm) {
  if (gemm.release != nullptr) gemm.release();
}

}  // namespace

void PairLogits(const at::Tensor& hidden_CH, const at::Tensor& lm_head_VH,
                const TakeLogitBlock& take, const Bfloat16Gemm& gemm) {
  const HeadWeights weights(lm_head_VH);
  const int64_t num_rows = hidden_CH.size(0);
  const int64_t h = weights.hidden_size;
  const int64_t padded_rows = RoundUp(num_rows, kHeadPairRows);
  const at::Tensor hidden = hidden_CH.contiguous();
  const at::Tensor pair_buffer = Buffer(padded_rows * h, at::kBFloat16);
  PackPairs(hidden.const_data_ptr<BFloat16>(), 1, h, h, num_rows, h, padded_rows,
            pair_buffer.mutable_data_ptr<BFloat16>());
  const BFloat16* pairs = pair_buffer.const_data_ptr<BFloat16>();
  ForBlockRanges(weights.vocabulary_size, [&](int64_t begin, int64_t end) {
    const int64_t block_stride = BlockStride(padded_rows);
    const at::Tensor block_buffer = Buffer(kVocabularyBlock * block_stride, at::kFloat);
    float* block = block_buffer.mutable_data_ptr<float>();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t num = SizeOfBlock(i, weights.vocabulary_size);
      MultiplyInColumns(gemm, num, padded_rows, h, h, padded_rows, block_stride,
                        /*accumulate=*/false, weights.Bf16Row(i * kVocabularyBlock), pairs, block);
      take(i, block, block_stride);
    }
    Release(gemm);
  });
}

at::Tensor PairsOf(const at::Tensor& scaled_hidden_CH) {
  const int64_t num_rows = scaled_hidden_CH.size(0), h = scaled_hidden_CH.size(1);
  const int64_t padded_rows = RoundUp(num_rows, kHeadPairRows);
  at::Tensor pairs = Buffer(padded_rows * h, at::kBFloat16);
  const at::Tensor narrow = scaled_hidden_CH.to(at::kBFloat16);
  PackPairs(narrow.const_data_ptr<BFloat16>(), h, 1, num_rows, h, padded_rows, h,
            pairs.mutable_data_ptr<BFloat16>());
  return pairs;
}

void PairBackward(const cpu::LogitGradient& d_logits, const at::Tensor& lm_head_VH,
                  const at::Tensor& d_lm_head_VH, int64_t slice, int64_t num_slices,
                  const at::Tensor& hidden_pairs, float* d_hidden, const Bfloat16Gemm& gemm) {
  const HeadWeights weights(lm_head_VH);
  const int64_t num_rows = d_logits.num_rows;
  const int64_t padded_rows = RoundUp(num_rows, kHeadPairRows);
  const int64_t h = weights.hidden_size;
  float* d_lm_head = d_lm_head_VH.defined() ? d_lm_head_VH.mutable_data_ptr<float>() : nullptr;
  const at::Tensor pair_buffer = Buffer(kVocabularyBlock * h, at::kBFloat16);
  BFloat16* pairs = pair_buffer.mutable_data_ptr<BFloat16>();
  // The block's gradient in vocabulary order, [block, C], and in row order, [C, block].
  const at::Tensor token_buffer = Buffer(num_rows, at::kFloat);
  float* token = token_buffer.mutable_data_ptr<float>();
  const at::Tensor column_buffer = at::zeros({padded_rows * kVocabularyBlock}, at::kBFloat16);
  const at::Tensor row_buffer = at::zeros({padded_rows * kVocabularyBlock}, at::kBFloat16);
  BFloat16* by_column = column_buffer.mutable_data_ptr<BFloat16>();
  BFloat16* by_row = row_buffer.mutable_data_ptr<BFloat16>();

  const auto narrow = cpu::BestLayerLoops(DataType::kBFloat16).narrow;
  const int64_t num_blocks = NumVocabularyBlocks(weights.vocabulary_size);
  const int64_t end_block = num_blocks * (slice + 1) / num_slices;
  for (int64_t i = num_blocks * slice / num_slices; i < end_block; ++i) {
    const int64_t first = i * kVocabularyBlock;
    const int64_t num = SizeOfBlock(i, weights.vocabulary_size);
    const int64_t padded_num = RoundUp(num, 2);
    for (int64_t v = 0; v < num; ++v) {
      ScaleBlock(d_logits, i, v, token);
      narrow(token, num_rows, by_column + v * padded_rows);  // exact: powers of two
    }
    for (int64_t n = 0; n < num_rows; ++n) {
      BFloat16* row = by_row + n * kVocabularyBlock;
      for (int64_t v = 0; v < num; ++v) row[v] = by_column[v * padded_rows + n];
      for (int64_t v = num; v < padded_num; ++v) row[v] = BFloat16(0);
    }
    PackPairs(weights.Bf16Row(first), h, 1, num, h, padded_num, h, pairs);
    MultiplyInColumns(gemm, padded_rows, h, padded_num, kVocabularyBlock, h, h, /*accumulate=*/true,
                      by_row, pairs, d_hidden);
    if (d_lm_head == nullptr) continue;
    MultiplyInColumns(gemm, num, h, padded_rows, padded_rows, h, h, /*accumulate=*/true, by_column,
                      hidden_pairs.const_data_ptr<BFloat16>(), d_lm_head + first * h);
  }
  Release(gemm);
}

}  // namespace taopd
