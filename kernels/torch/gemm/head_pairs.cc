#include "kernels/torch/gemm/head_pairs.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/layers/layer_loops.h"

namespace taopd {
namespace {

using at::BFloat16;
using cpu::Bfloat16Bits;
using cpu::kPanelOutputs;

// The number of tokens whose products are summed before they are added to d_hidden.
constexpr int64_t kSummedTokens = 8 * kVocabularyBlock;
// The number of tokens whose rows of lm_head are packed together, each row as a whole.
constexpr int64_t kPackedTokens = 32;
static_assert(kSummedTokens % kPackedTokens == 0 && kPackedTokens % 2 == 0);

// Prefetches one of num_parts equal parts of adjacent rows, while a panel of others is packed.
void PrefetchPart(const BFloat16* rows, int64_t num_elements, int64_t part, int64_t num_parts) {
  constexpr int64_t kLine = 64 / sizeof(BFloat16);
  const int64_t lines = num_elements / kLine;
  for (int64_t line = lines * part / num_parts; line < lines * (part + 1) / num_parts; ++line) {
    __builtin_prefetch(rows + line * kLine, /*rw=*/0, /*locality=*/2);
  }
}

// The memory and the steps of one thread's backward pass.
class PairGradients {
 public:
  PairGradients(const cpu::LogitGradient& d_logits, const HeadWeights& weights,
                const cpu::PackedGemm& gemm, const PairLogitBlocks* logits,
                const ComputeBlockExps& compute_exps)
      : d_logits_(d_logits),
        logits_(logits),
        compute_exps_(compute_exps),
        weights_(weights),
        gemm_(gemm),
        num_rows_(d_logits.num_rows),
        hidden_size_(weights.hidden_size),
        factor_elements_(gemm.first_factor_elements(kSummedTokens)),
        panel_elements_(cpu::PairPanelElements(kSummedTokens)),
        token_(Buffer(num_rows_, at::kFloat)),
        gradient_(Buffer(kSummedTokens * num_rows_, at::kBFloat16)),
        factors_(Buffer(cpu::NumPackedPanels(num_rows_) * factor_elements_, at::kBFloat16)),
        panels_(Buffer(cpu::NumPackedPanels(hidden_size_) * panel_elements_, at::kBFloat16)),
        sums_(Buffer(kVocabularyBlock * hidden_size_, at::kFloat)) {
    if (logits != nullptr) logits_of_block_ = logits->MakeBuffer();
  }

  // Takes tokens [first, first + num), which begin with a block.
  void Take(int64_t first, int64_t num) {
    first_ = first;
    num_ = num;
    float* const token = token_.mutable_data_ptr<float>();
    const auto narrow = cpu::BestLayerLoops(DataType::kBFloat16).narrow;
    const auto scale = cpu::BestPanelGemm().scale_bf16;
    for (int64_t v = 0; v < num; ++v) {
      const int64_t block = (first + v) / kVocabularyBlock;
      if (logits_ != nullptr && v % kVocabularyBlock == 0) {
        float* const logits = logits_of_block_.mutable_data_ptr<float>();
        logits_->Compute(block, logits);
        compute_exps_(block, logits, logits_->stride(), GradientOf(v));
      }
      const Bfloat16Bits* const exps =
          logits_ != nullptr
              ? GradientOf(v)
              : static_cast<const Bfloat16Bits*>(d_logits_.exps_VC) + (first + v) * num_rows_;
      scale(exps, d_logits_.factors_BC + block * num_rows_, num_rows_, token);
      narrow(token, num_rows_, GradientOf(v));  // exact: powers of two
    }
  }

  // d_hidden += d_logits lm_head for the tokens.
  void AddToHidden(float* d_hidden) {
    PackGradient();
    PackWeights();
    Bfloat16Bits* const factors = Bits(factors_.mutable_data_ptr<BFloat16>());
    Bfloat16Bits* const panels = Bits(panels_.mutable_data_ptr<BFloat16>());
    for (int64_t column = 0; column < hidden_size_; column += kPanelOutputs) {
      for (int64_t row = 0; row < num_rows_; row += kPanelOutputs) {
        gemm_.add_transposed_pairs(factors + row / kPanelOutputs * factor_elements_,
                                   panels + column / kPanelOutputs * panel_elements_, num_,
                                   std::min(kPanelOutputs, num_rows_ - row),
                                   std::min(kPanelOutputs, hidden_size_ - column),
                                   d_hidden + row * hidden_size_ + column, hidden_size_);
      }
    }
  }

  // d_lm_head += d_logits^T hidden for the tokens. A buffer takes the sums first, so that d_lm_head
  // is read and written in order.
  void AddToWeights(const at::Tensor& hidden_pairs, float* d_lm_head) {
    float* const sums = sums_.mutable_data_ptr<float>();
    for (int64_t v = 0; v < num_; v += kVocabularyBlock) {
      const int64_t num = std::min(kVocabularyBlock, num_ - v);
      gemm_.multiply_pairs(GradientOf(v), num_rows_, Bits(hidden_pairs.const_data_ptr<BFloat16>()),
                           num, hidden_size_, num_rows_, sums, hidden_size_,
                           /*accumulate=*/false);
      cpu::BestPanelGemm().add_scaled(sums, 1, num * hidden_size_,
                                      d_lm_head + (first_ + v) * hidden_size_);
    }
  }

 private:
  Bfloat16Bits* GradientOf(int64_t v) {
    return Bits(gradient_.mutable_data_ptr<BFloat16>()) + v * num_rows_;
  }

  void PackGradient() {
    rows_.clear();
    for (int64_t v = 0; v < num_; ++v) rows_.push_back(GradientOf(v));
    Bfloat16Bits* const factors = Bits(factors_.mutable_data_ptr<BFloat16>());
    for (int64_t row = 0; row < num_rows_; row += kPanelOutputs) {
      gemm_.pack_first_factor(rows_.data(), row, num_, std::min(kPanelOutputs, num_rows_ - row),
                              factors + row / kPanelOutputs * factor_elements_);
    }
  }

  void PackWeights() {
    rows_.clear();
    for (int64_t v = 0; v < num_; ++v) rows_.push_back(Bits(weights_.Bf16Row(first_ + v)));
    Bfloat16Bits* const panels = Bits(panels_.mutable_data_ptr<BFloat16>());
    const int64_t num_panels = cpu::NumPackedPanels(hidden_size_);
    for (int64_t v = 0; v < num_; v += kPackedTokens) {
      const int64_t num = std::min(kPackedTokens, num_ - v);
      const int64_t next = first_ + v + kPackedTokens;
      const int64_t ahead =
          std::clamp<int64_t>(weights_.vocab_size - next, 0, kPackedTokens) * hidden_size_;
      for (int64_t panel = 0; panel < num_panels; ++panel) {
        const int64_t column = panel * kPanelOutputs;
        if (ahead > 0) PrefetchPart(weights_.Bf16Row(next), ahead, panel, num_panels);
        cpu::PackPairRows(rows_.data() + v, column, num,
                          std::min(kPanelOutputs, hidden_size_ - column),
                          panels + panel * panel_elements_ + v * kPanelOutputs);
      }
    }
  }

  const cpu::LogitGradient& d_logits_;
  const PairLogitBlocks* const logits_;  // null: d_logits_ has the exps
  const ComputeBlockExps& compute_exps_;
  at::Tensor logits_of_block_;
  const HeadWeights& weights_;
  const cpu::PackedGemm& gemm_;
  const int64_t num_rows_, hidden_size_, factor_elements_, panel_elements_;
  // One token's gradient, that of all tokens taken [tokens, C], the same packed, the tokens' rows
  // of lm_head packed, and products of one block with hidden.
  const at::Tensor token_, gradient_, factors_, panels_, sums_;
  std::vector<const Bfloat16Bits*> rows_;
  int64_t first_ = 0, num_ = 0;
};

}  // namespace

PairLogitBlocks::PairLogitBlocks(const at::Tensor& hidden_CH, const at::Tensor& lm_head_VH,
                                 const cpu::PackedGemm& gemm)
    : weights_(lm_head_VH), gemm_(gemm), num_rows_(hidden_CH.size(0)) {
  const int64_t h = weights_.hidden_size, panel_elements = cpu::PairPanelElements(h);
  const at::Tensor hidden = hidden_CH.contiguous();
  panels_ = Buffer(cpu::NumPackedPanels(num_rows_) * panel_elements, at::kBFloat16);
  Bfloat16Bits* const panels = Bits(panels_.mutable_data_ptr<BFloat16>());
  for (int64_t n = 0; n < num_rows_; n += kPanelOutputs) {
    const int64_t num = std::min(kPanelOutputs, num_rows_ - n);
    Bfloat16Bits* const panel = panels + n / kPanelOutputs * panel_elements;
    cpu::PackPairColumns(Bits(hidden.const_data_ptr<BFloat16>()) + n * h, h, num, h, 0, panel);
    cpu::ZeroPairColumns(h, num, panel);
  }
}

// The columns after the rows are read but not used.
at::Tensor PairLogitBlocks::MakeBuffer() const {
  return at::zeros({kVocabularyBlock * stride()}, at::kFloat);
}

void PairLogitBlocks::Compute(int64_t block, float* logits) const {
  gemm_.multiply_pairs(Bits(weights_.Bf16Row(block * kVocabularyBlock)), weights_.hidden_size,
                       Bits(panels_.const_data_ptr<BFloat16>()),
                       SizeOfBlock(block, weights_.vocab_size), num_rows_, weights_.hidden_size,
                       logits, stride(), /*accumulate=*/false);
}

void PairLogits(const at::Tensor& hidden_CH, const at::Tensor& lm_head_VH,
                const TakeLogitBlock& take, const cpu::PackedGemm& gemm) {
  const PairLogitBlocks logits(hidden_CH, lm_head_VH, gemm);
  ForBlockRanges(lm_head_VH.size(0), [&](int64_t begin, int64_t end) {
    const at::Tensor buffer = logits.MakeBuffer();
    for (int64_t i = begin; i < end; ++i) {
      logits.Compute(i, buffer.mutable_data_ptr<float>());
      take(i, buffer.mutable_data_ptr<float>(), logits.stride());
    }
  });
}

at::Tensor PairsOf(const at::Tensor& scaled_hidden_CH) {
  const int64_t num_rows = scaled_hidden_CH.size(0), h = scaled_hidden_CH.size(1);
  const int64_t panel_elements = cpu::PairPanelElements(num_rows);
  at::Tensor panels = Buffer(cpu::NumPackedPanels(h) * panel_elements, at::kBFloat16);
  const at::Tensor narrow = scaled_hidden_CH.to(at::kBFloat16);
  std::vector<const Bfloat16Bits*> rows;
  for (int64_t n = 0; n < num_rows; ++n) {
    rows.push_back(Bits(narrow.const_data_ptr<BFloat16>()) + n * h);
  }
  for (int64_t column = 0; column < h; column += kPanelOutputs) {
    cpu::PackPairRows(
        rows.data(), column, num_rows, std::min(kPanelOutputs, h - column),
        Bits(panels.mutable_data_ptr<BFloat16>()) + column / kPanelOutputs * panel_elements);
  }
  return panels;
}

void PairBackward(const cpu::LogitGradient& d_logits, const at::Tensor& lm_head_VH,
                  const at::Tensor& d_lm_head_VH, int64_t slice, int64_t num_slices,
                  const at::Tensor& hidden_pairs, float* d_hidden, const cpu::PackedGemm& gemm,
                  const PairLogitBlocks* logits, const ComputeBlockExps& compute_exps) {
  const HeadWeights weights(lm_head_VH);
  float* d_lm_head = d_lm_head_VH.defined() ? d_lm_head_VH.mutable_data_ptr<float>() : nullptr;
  PairGradients backward(d_logits, weights, gemm, logits, compute_exps);
  const int64_t num_blocks = NumVocabularyBlocks(weights.vocab_size);
  const int64_t end =
      std::min(num_blocks * (slice + 1) / num_slices * kVocabularyBlock, weights.vocab_size);
  for (int64_t first = num_blocks * slice / num_slices * kVocabularyBlock; first < end;
       first += kSummedTokens) {
    backward.Take(first, std::min(kSummedTokens, end - first));
    backward.AddToHidden(d_hidden);
    if (d_lm_head != nullptr) backward.AddToWeights(hidden_pairs, d_lm_head);
  }
}

}  // namespace taopd
