// The common parts of the two ways of multiplying a head on the CPU (head_panels.h, head_pairs.h):
// the blocks of the vocabulary, the weights, and the scaling of a block of the logits' gradient.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <functional>

#include "kernels/cpu/gemm/panel_gemm.h"
#include "kernels/cpu/head/logit_gradient.h"
#include "kernels/torch/gemm/buffers.h"
#include "kernels/torch/parallel_loop.h"
#include "taopd/base/round_up.h"

namespace taopd {

// Tokens per block of the vocabulary; the last block may have fewer. The number is large enough
// that a block of d_hidden is written once per many products, and small enough for the second-level
// cache. It is a multiple of every tile's rows and of the 32 bfloat16 numbers that AMX multiplies
// at a time.
inline constexpr int64_t kVocabularyBlock = 96;

// Takes a block of logits; see CpuHeadLogitBlocks in head_gemm_cpu.h.
using TakeLogitBlock = std::function<void(int64_t block, float* logits, int64_t stride)>;

// Computes the e of a block (kernels/cpu/head/logit_gradient.h), [tokens, C], from its logits,
// which it may overwrite; see CpuHeadBackward in head_gemm_cpu.h.
using ComputeBlockExps =
    std::function<void(int64_t block, float* logits, int64_t stride, void* exps)>;

inline int64_t NumVocabularyBlocks(int64_t vocab_size) {
  return CeilDiv(vocab_size, kVocabularyBlock);
}

// Returns the number of tokens of block i.
inline int64_t SizeOfBlock(int64_t i, int64_t vocab_size) {
  return std::min(kVocabularyBlock, vocab_size - i * kVocabularyBlock);
}

// Returns the stride of rows that stay in a cache: whole vectors and one more cache line, because
// rows at distances of a power of two would share few of the cache's sets.
inline int64_t BlockStride(int64_t columns) { return RoundUp(columns, 16) + 16; }

// Calls f(begin, end) for contiguous ranges of blocks, on several threads.
template <typename F>
void ForBlockRanges(int64_t vocab_size, const F& f) {
  ParallelLoop(NumVocabularyBlocks(vocab_size), 1, f);
}

// A contiguous lm_head, float32 or bfloat16, row by row. The tensor owns the memory.
struct HeadWeights {
  explicit HeadWeights(const at::Tensor& lm_head_VH)
      : bf16(lm_head_VH.scalar_type() == at::kBFloat16),
        vocab_size(lm_head_VH.size(0)),
        hidden_size(lm_head_VH.size(1)),
        data(lm_head_VH.const_data_ptr()) {}

  const at::BFloat16* Bf16Row(int64_t v) const {
    return static_cast<const at::BFloat16*>(data) + v * hidden_size;
  }
  const float* FloatRow(int64_t v) const {
    return static_cast<const float*>(data) + v * hidden_size;
  }

  bool bf16;
  int64_t vocab_size, hidden_size;
  const void* data;
};

// to[n] = factor_n e_vn for token v of one block and all rows n, without the rows' scales.
inline void ScaleBlock(const cpu::LogitGradient& d_logits, int64_t block, int64_t v, float* to) {
  const cpu::PanelGemm& gemm = cpu::BestPanelGemm();
  const int64_t num_rows = d_logits.num_rows;
  const float* factors = d_logits.factors_BC + block * num_rows;
  const int64_t at = (block * kVocabularyBlock + v) * num_rows;
  if (d_logits.dtype == DataType::kBFloat16) {
    gemm.scale_bf16(static_cast<const cpu::Bfloat16Bits*>(d_logits.exps_VC) + at, factors, num_rows,
                    to);
  } else {
    gemm.scale(static_cast<const float*>(d_logits.exps_VC) + at, factors, num_rows, to);
  }
}

}  // namespace taopd
