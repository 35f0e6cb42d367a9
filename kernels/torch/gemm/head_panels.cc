#include "kernels/torch/gemm/head_panels.h"

#include <algorithm>

namespace taopd {
namespace {

using cpu::ElementOrder;

// The rows of d_lm_head that are updated at a time: their cache lines are read and written in
// order.
constexpr int64_t kGradientRows = 48;

}  // namespace

void PanelLogits(const at::Tensor& hidden_CH, const at::Tensor& lm_head_VH,
                 const TakeLogitBlock& take) {
  const cpu::PanelGemm& gemm = cpu::BestPanelGemm();
  const HeadWeights weights(lm_head_VH);
  const int64_t num_rows = hidden_CH.size(0);
  const int64_t h = weights.hidden_size;
  const at::Tensor hidden_panels = Buffer(RoundUp(num_rows, gemm.panel_width) * h, at::kFloat);
  const at::Tensor wide_CH = hidden_CH.to(at::kFloat).contiguous();
  gemm.pack(wide_CH.const_data_ptr<float>(), ElementOrder::kColumns, h, h, num_rows,
            hidden_panels.mutable_data_ptr<float>());
  const float* panels = hidden_panels.const_data_ptr<float>();
  ForBlockRanges(weights.vocab_size, [&](int64_t begin, int64_t end) {
    const int64_t stride = BlockStride(num_rows);
    const at::Tensor block_buffer = Buffer(kVocabularyBlock * stride, at::kFloat);
    float* block = block_buffer.mutable_data_ptr<float>();
    // The columns after the rows are read but not used, so they are zero.
    for (int64_t v = 0; v < kVocabularyBlock; ++v) {
      std::fill(block + v * stride + num_rows, block + (v + 1) * stride, 0.0f);
    }
    const int64_t wide_stride = BlockStride(h);
    const at::Tensor wide_buffer =
        Buffer(weights.bf16 ? kVocabularyBlock * wide_stride : 0, at::kFloat);
    float* wide = wide_buffer.mutable_data_ptr<float>();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i * kVocabularyBlock;
      const int64_t num = SizeOfBlock(i, weights.vocab_size);
      const float* a = nullptr;
      int64_t a_stride = h;
      if (weights.bf16) {
        for (int64_t v = 0; v < num; ++v) {
          gemm.widen(Bits(weights.Bf16Row(first + v)), h, wide + v * wide_stride);
        }
        a = wide;
        a_stride = wide_stride;
      } else {
        a = weights.FloatRow(first);
      }
      gemm.multiply(a, ElementOrder::kRows, a_stride, panels, num, num_rows, h, block, stride,
                    /*accumulate=*/false);
      take(i, block, stride);
    }
  });
}

at::Tensor PanelsOf(const at::Tensor& scaled_hidden_CH) {
  const cpu::PanelGemm& gemm = cpu::BestPanelGemm();
  const int64_t num_rows = scaled_hidden_CH.size(0), h = scaled_hidden_CH.size(1);
  at::Tensor panels = Buffer(num_rows * RoundUp(h, gemm.panel_width), at::kFloat);
  gemm.pack(scaled_hidden_CH.const_data_ptr<float>(), ElementOrder::kRows, h, num_rows, h,
            panels.mutable_data_ptr<float>());
  return panels;
}

void PanelBackward(const cpu::LogitGradient& d_logits, const at::Tensor& lm_head_VH,
                   const at::Tensor& d_lm_head_VH, int64_t slice, int64_t num_slices,
                   const at::Tensor& hidden_panels, float* d_hidden) {
  const cpu::PanelGemm& gemm = cpu::BestPanelGemm();
  const HeadWeights weights(lm_head_VH);
  const int64_t num_rows = d_logits.num_rows;
  const int64_t h = weights.hidden_size;
  float* d_lm_head = d_lm_head_VH.defined() ? d_lm_head_VH.mutable_data_ptr<float>() : nullptr;
  const at::Tensor panel_buffer =
      Buffer(kVocabularyBlock * RoundUp(h, gemm.panel_width), at::kFloat);
  float* panels = panel_buffer.mutable_data_ptr<float>();
  const at::Tensor block_buffer = Buffer(kVocabularyBlock * num_rows, at::kFloat);
  float* block = block_buffer.mutable_data_ptr<float>();

  const int64_t num_blocks = NumVocabularyBlocks(weights.vocab_size);
  const int64_t end_block = num_blocks * (slice + 1) / num_slices;
  for (int64_t i = num_blocks * slice / num_slices; i < end_block; ++i) {
    const int64_t first = i * kVocabularyBlock;
    const int64_t num = SizeOfBlock(i, weights.vocab_size);
    for (int64_t v = 0; v < num; ++v) ScaleBlock(d_logits, i, v, block + v * num_rows);
    if (weights.bf16) {
      gemm.pack_bf16(Bits(weights.Bf16Row(first)), ElementOrder::kRows, h, num, h, panels);
    } else {
      gemm.pack(weights.FloatRow(first), ElementOrder::kRows, h, num, h, panels);
    }
    gemm.multiply(block, ElementOrder::kColumns, num_rows, panels, num_rows, h, num, d_hidden, h,
                  /*accumulate=*/true);
    for (int64_t v = 0; d_lm_head != nullptr && v < num; v += kGradientRows) {
      gemm.multiply(block + v * num_rows, ElementOrder::kRows, num_rows,
                    hidden_panels.const_data_ptr<float>(), std::min(kGradientRows, num - v), h,
                    num_rows, d_lm_head + (first + v) * h, h,
                    /*accumulate=*/true);
    }
  }
}

}  // namespace taopd
