#include "kernels/torch/gemm/head_gemm_cpu.h"

#include <algorithm>
#include <memory>

#include "kernels/torch/gemm/head_pairs.h"
#include "kernels/torch/gemm/head_panels.h"
#include "kernels/torch/parallel_loop.h"

namespace taopd {
namespace {

// Returns the number of slices of the vocabulary that threads share in a backward pass. Each slice
// sums its part of d_hidden by itself. The parts are added in order, so the number of threads does
// not change the result.
int64_t NumSlices(const at::Tensor& lm_head_VH) {
  constexpr int64_t kMaxSlices = 16;
  return IsSmallHead(lm_head_VH) ? 1
                                 : std::min(kMaxSlices, NumVocabularyBlocks(lm_head_VH.size(0)));
}

// logits[n][first + v] = block[v][n] for num rows of the block.
void StoreTransposed(const float* block, int64_t block_stride, int64_t num, int64_t num_rows,
                     float* logits, int64_t logits_stride) {
  constexpr int64_t kColumns = 16;  // of the block: one cache line
  for (int64_t begin = 0; begin < num_rows; begin += kColumns) {
    const int64_t end = std::min(num_rows, begin + kColumns);
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t v = 0; v < num; ++v) logits[n * logits_stride + v] = block[v * block_stride + n];
    }
  }
}

bool UsesPairs(const at::Tensor& lm_head_VH, const cpu::PackedGemm& gemm) {
  return lm_head_VH.scalar_type() == at::kBFloat16 && gemm.multiply_pairs != nullptr;
}

}  // namespace

bool IsSmallHead(const at::Tensor& lm_head_VH) {
  constexpr int64_t kSmallHeadBytes = 256 << 10;
  return lm_head_VH.numel() * static_cast<int64_t>(sizeof(float)) <= kSmallHeadBytes;
}

int64_t CpuHeadRowTile(const at::Tensor& lm_head_VH, const cpu::PackedGemm& gemm) {
  if (UsesPairs(lm_head_VH, gemm)) return cpu::kPanelOutputs;
  return std::max<int64_t>(cpu::BestPanelGemm().panel_width, 16);
}

bool CpuHeadRecomputes(const at::Tensor& lm_head_VH, const cpu::PackedGemm& gemm) {
  // Only AMX is so much faster than memory.
  constexpr int64_t kRowsOfAmx = 32;
  return UsesPairs(lm_head_VH, gemm) && gemm.row_tile >= kRowsOfAmx;
}

int64_t CpuHeadBackwardBytesPerRow(const at::Tensor& lm_head_VH) {
  // hidden as float32 and as panels, and one partial d_hidden per slice.
  return lm_head_VH.size(1) * static_cast<int64_t>(sizeof(float)) * (2 + NumSlices(lm_head_VH));
}

void CpuHeadLogitBlocks(const at::Tensor& hidden_CH, const at::Tensor& lm_head_VH,
                        const TakeLogitBlock& take, const cpu::PackedGemm& gemm) {
  if (hidden_CH.size(0) == 0) return;
  const at::Tensor weights_VH = lm_head_VH.contiguous();
  if (UsesPairs(weights_VH, gemm)) {
    PairLogits(hidden_CH, weights_VH, take, gemm);
  } else {
    PanelLogits(hidden_CH, weights_VH, take);
  }
}

void CpuHeadLogits(const at::Tensor& hidden_CH, const at::Tensor& lm_head_VH,
                   const at::Tensor& logits_CV, const cpu::PackedGemm& gemm) {
  float* logits = logits_CV.mutable_data_ptr<float>();
  const int64_t num_rows = hidden_CH.size(0);
  const int64_t logits_stride = logits_CV.stride(0);
  CpuHeadLogitBlocks(
      hidden_CH, lm_head_VH,
      [&](int64_t i, const float* block, int64_t stride) {
        StoreTransposed(block, stride, SizeOfBlock(i, lm_head_VH.size(0)), num_rows,
                        logits + i * kVocabularyBlock, logits_stride);
      },
      gemm);
}

at::Tensor CpuHeadBackward(const cpu::LogitGradient& d_logits, const at::Tensor& hidden_CH,
                           const at::Tensor& lm_head_VH, const at::Tensor& d_lm_head_VH,
                           const cpu::PackedGemm& gemm, const ComputeBlockExps& compute_exps) {
  const at::Tensor weights_VH = lm_head_VH.contiguous();
  const int64_t num_rows = d_logits.num_rows;
  const int64_t h = weights_VH.size(1);
  TORCH_CHECK(d_logits.block_size == kVocabularyBlock && hidden_CH.size(0) == num_rows &&
                  d_logits.vocab_size == weights_VH.size(0),
              "d_logits is [", num_rows, ", ", d_logits.vocab_size, "] in blocks of ",
              d_logits.block_size, ", hidden ", hidden_CH.sizes(), ", lm_head ",
              weights_VH.sizes());
  if (num_rows == 0) return at::zeros({0, h}, at::kFloat);
  const at::Tensor row_scale_C1 =
      at::from_blob(const_cast<float*>(d_logits.row_scale_C), {num_rows, 1}, at::kFloat);
  // Both products need a row's scale: one in hidden's rows, the other in the rows of its result.
  // `contiguous` comes first because a product keeps the order of its factor's dimensions.
  const at::Tensor hidden = hidden_CH.to(at::kFloat).contiguous().mul(row_scale_C1);
  const bool pairs = UsesPairs(weights_VH, gemm);
  const at::Tensor packed_hidden = pairs ? PairsOf(hidden) : PanelsOf(hidden);
  TORCH_CHECK(d_logits.exps_VC != nullptr || (pairs && compute_exps), "the exps were not kept");
  std::unique_ptr<const PairLogitBlocks> logits;
  if (d_logits.exps_VC == nullptr) {
    logits = std::make_unique<const PairLogitBlocks>(hidden_CH, weights_VH, gemm);
  }

  const int64_t num_slices = NumSlices(weights_VH);
  const at::Tensor partial_SCH = at::zeros({num_slices, num_rows, h}, at::kFloat);
  ParallelLoop(num_slices, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slice = begin; slice < end; ++slice) {
      float* d_hidden = partial_SCH.mutable_data_ptr<float>() + slice * num_rows * h;
      if (pairs) {
        PairBackward(d_logits, weights_VH, d_lm_head_VH, slice, num_slices, packed_hidden, d_hidden,
                     gemm, logits.get(), compute_exps);
      } else {
        PanelBackward(d_logits, weights_VH, d_lm_head_VH, slice, num_slices, packed_hidden,
                      d_hidden);
      }
    }
  });
  at::Tensor d_hidden_CH = partial_SCH.select(0, 0);
  for (int64_t slice = 1; slice < num_slices; ++slice) {
    d_hidden_CH.add_(partial_SCH.select(0, slice));
  }
  return d_hidden_CH.mul_(row_scale_C1);
}

}  // namespace taopd
