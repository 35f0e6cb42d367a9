#include <algorithm>
#include <cmath>

#include "kernels/torch/attention/cuda_paged_attention.h"
#include "kernels/torch/composed/norms_and_swiglu.h"
#include "kernels/torch/composed/paged_attention.h"
#include "kernels/torch/self_check/trial.h"

namespace taopd {
namespace {

// A step of a model on pages. The pages of a sequence lie in descending order.
class AttentionTrial : public Trial {
 public:
  void RunCustom() override {
    const CudaPagedAttention attention(sequences_, shape_.num_heads, shape_.num_kv_heads,
                                       shape_.head_size, shape_.device, kernels_,
                                       /*custom_long_chunks=*/true);
    custom_TC_ =
        attention.Run(q_TND_, k_TKD_, v_TKD_, rotation_, custom_pages_,
                      1 / std::sqrt(static_cast<double>(shape_.head_size)), shape_.sliding_window);
  }

  void RunComposed() override {
    const ComposedPagedAttention attention(sequences_, shape_.device);
    const auto ready = [&](const at::Tensor& x_TAD, const at::Tensor& norm_D) {
      return NormRotateHeadsComposed(x_TAD, norm_D, rotation_.eps, rotation_.cos_T1D,
                                     rotation_.sin_T1D);
    };
    const at::Tensor &keys = composed_pages_.keys_BKPD, &values = composed_pages_.values_BKPD;
    attention.Append(ready(k_TKD_, rotation_.k_norm_D), v_TKD_, keys, values);
    composed_TC_ =
        attention.Attend(ready(q_TND_, rotation_.q_norm_D), keys, values, shape_.sliding_window);
  }

  std::vector<OutputError> Errors() const override {
    return Compare(Named(custom_TC_, custom_pages_), Named(composed_TC_, composed_pages_));
  }

 protected:
  AttentionTrial(const SelfCheckShape& shape, const DeviceKernels& kernels)
      : shape_(shape), kernels_(kernels) {}

  int64_t longest() const { return std::max<int64_t>(1, shape_.max_len); }
  // Adds a sequence with at most this many rows after a cached prefix.
  void AddChunk(int64_t num_rows) {
    const int64_t chunk = std::min(longest(), num_rows);
    AddSequence(chunk, std::min<int64_t>(longest() - chunk, kPrefix));
  }
  void AddSequence(int64_t num_rows, int64_t past_len) {
    sequences_.push_back({num_rows_, num_rows, past_len, nullptr});
    num_rows_ += num_rows;
    num_blocks_ += KvBlocksFor(past_len + num_rows);
  }

  // Call it after all sequences are added.
  void FillIn(uint64_t seed) {
    LayOutTables();
    FillInNumbers(seed);
  }

 private:
  static constexpr int64_t kPrefix = 200;

  void LayOutTables() {
    tables_.reserve(static_cast<size_t>(num_blocks_));
    for (PagedSequence& sequence : sequences_) {
      sequence.block_table = tables_.data() + tables_.size();
      for (int64_t b = 0; b < KvBlocksFor(sequence.past_len + sequence.num_rows); ++b) {
        tables_.push_back(static_cast<int32_t>(num_blocks_ - 1 - tables_.size()));
      }
    }
  }

  void FillInNumbers(uint64_t seed) {
    RandomNumbers random(shape_.device, seed);
    const int64_t D = shape_.head_size, N = shape_.num_heads, K = shape_.num_kv_heads;
    q_TND_ = random.Normal({num_rows_, N, D}, shape_.dtype);
    k_TKD_ = random.Normal({num_rows_, K, D}, shape_.dtype);
    v_TKD_ = random.Normal({num_rows_, K, D}, shape_.dtype);
    if (shape_.qk_norm) {
      rotation_.q_norm_D = random.NormWeight(D, shape_.dtype);
      rotation_.k_norm_D = random.NormWeight(D, shape_.dtype);
    }
    rotation_.eps = shape_.eps;
    const auto tables = random.Rotations(num_rows_, D, shape_.dtype);
    rotation_.cos_T1D = tables.cos_T1D;
    rotation_.sin_T1D = tables.sin_T1D;
    custom_pages_.keys_BKPD = random.Normal({num_blocks_, K, kBlockTokens, D}, shape_.dtype);
    custom_pages_.values_BKPD = random.Normal({num_blocks_, K, kBlockTokens, D}, shape_.dtype);
    composed_pages_ = {custom_pages_.keys_BKPD.clone(), custom_pages_.values_BKPD.clone()};
  }

  std::vector<NamedTensor> Named(const at::Tensor& out_TC, const PlainPageTensors& pages) const {
    const double allowed = AllowedFor(shape_.dtype);
    return {{"attention", out_TC, allowed},
            {"keys", pages.keys_BKPD, allowed},
            {"values", pages.values_BKPD, allowed}};
  }

  const SelfCheckShape shape_;
  const DeviceKernels& kernels_;
  std::vector<PagedSequence> sequences_;
  std::vector<int32_t> tables_;
  int64_t num_rows_ = 0, num_blocks_ = 0;
  at::Tensor q_TND_, k_TKD_, v_TKD_;
  HeadRotation rotation_;
  PlainPageTensors custom_pages_, composed_pages_;
  at::Tensor custom_TC_, composed_TC_;
};

// A batch as an engine makes it: the longest sequence and one of half its length decode, and a
// third one is prefilled in a short chunk.
class PagedAttentionTrial final : public AttentionTrial {
 public:
  PagedAttentionTrial(const SelfCheckShape& shape, const DeviceKernels& kernels, uint64_t seed)
      : AttentionTrial(shape, kernels) {
    AddSequence(1, longest() - 1);
    AddSequence(1, longest() / 2);
    AddChunk(shape.num_rows);
    FillIn(seed);
  }
};

class PrefillAttentionTrial final : public AttentionTrial {
 public:
  PrefillAttentionTrial(const SelfCheckShape& shape, const DeviceKernels& kernels, uint64_t seed)
      : AttentionTrial(shape, kernels) {
    AddChunk(shape.num_prefill_rows);
    FillIn(seed);
  }
};

}  // namespace

std::vector<TrialKind> AttentionTrials() {
  return {
      {KernelKind::kPagedAttention, NewTrial<PagedAttentionTrial>, /*only_training=*/false},
      {KernelKind::kPrefillAttention, NewTrial<PrefillAttentionTrial>, /*only_training=*/false}};
}

}  // namespace taopd
