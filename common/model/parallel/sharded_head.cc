#include "common/model/parallel/sharded_head.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/torch/head/head_gemm.h"
#include "taopd/head/logit_chunk.h"
#include "taopd/objective/log_math.h"

namespace taopd {
namespace {

constexpr double kNegativeInfinity = -std::numeric_limits<double>::infinity();

std::vector<int64_t> SliceSizes(int64_t vocab_size, int64_t num_ranks, int64_t at_most) {
  std::vector<int64_t> sizes;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    sizes.push_back(std::min(at_most, TensorParallel{rank, num_ranks}.NumIds(vocab_size)));
  }
  return sizes;
}

// The columns of the numbers per row and process that do not belong to an id.
enum SliceNumber { kLogSumExp, kLogTail, kSampled, kEntropy, kNumSliceNumbers };

// The scores of one process for its ids, on the CPU.
struct SliceScores {
  at::Tensor ids_Nk;        // int32, ids of the whole vocabulary
  at::Tensor log_probs_Nk;  // relative to the slice's normalizer
  at::Tensor numbers_N4;    // SliceNumber
};

SliceScores ScoreSlice(const at::Tensor& hidden_NH, const HeadMatrix& head_SH, int64_t vocab_size,
                       const at::Tensor& sampled_N, const ScoringOptions& options,
                       const TensorParallel& place) {
  const int64_t first_id = place.FirstId(vocab_size), num_ids = head_SH.vocab_size();
  ScoringOptions own = options;
  own.top_k = static_cast<int32_t>(std::min<int64_t>(options.top_k, num_ids));
  at::Tensor own_sampled_N, is_own_N;
  if (sampled_N.defined()) {
    const at::Tensor shifted_N = sampled_N.cpu() - static_cast<int32_t>(first_id);
    own_sampled_N = shifted_N.clamp(0, num_ids - 1);
    is_own_N = own_sampled_N.eq(shifted_N);
  }
  const ScoringOutput output =
      ScoreRowsOfHead(hidden_NH, head_SH, own_sampled_N, at::Tensor(), own);
  const int64_t num_rows = hidden_NH.size(0);
  at::Tensor numbers_N4 = at::zeros({num_rows, kNumSliceNumbers});
  numbers_N4.select(1, kLogSumExp).copy_(output.log_sum_exp_N);
  numbers_N4.select(1, kLogTail).copy_(output.log_tail_N);
  if (sampled_N.defined()) {
    numbers_N4.select(1, kSampled)
        .copy_(output.sampled_log_probs_N.masked_fill(is_own_N.logical_not(), kNegativeInfinity));
  }
  if (options.entropy) numbers_N4.select(1, kEntropy).copy_(output.entropy_N);
  return {output.ids_Nk + static_cast<int32_t>(first_id), output.log_probs_Nk, numbers_N4};
}

double LogSumExpOf(const std::vector<double>& values) {
  return LogSumExp(values.data(), static_cast<int32_t>(values.size()));
}

// Merges the slices of one row.
class RowMerger {
 public:
  RowMerger(const std::vector<SliceScores>& slices, const ScoringOptions& options,
            ScoringOutput* output)
      : slices_(slices), options_(options), output_(*output) {}

  void Merge(int64_t n) {
    FindNormalizer(n);
    const size_t k = static_cast<size_t>(options_.top_k);
    CollectIds(n);
    std::vector<double> taken, rest = tails_;
    for (size_t i = 0; i < items_.size(); ++i) (i < k ? taken : rest).push_back(items_[i].logit);
    for (size_t i = 0; i < k; ++i) {
      Put(output_.log_probs_Nk, n * options_.top_k + static_cast<int64_t>(i),
          items_[i].logit - log_sum_exp_);
      output_.ids_Nk.mutable_data_ptr<int32_t>()[n * options_.top_k + static_cast<int64_t>(i)] =
          items_[i].id;
    }
    Put(output_.log_sum_exp_N, n, log_sum_exp_);
    Put(output_.log_tail_N, n, LogSumExpOf(rest) - log_sum_exp_);
    Put(output_.log_support_mass_N, n, LogSumExpOf(taken) - log_sum_exp_);
    if (output_.sampled_log_probs_N.defined()) {
      Put(output_.sampled_log_probs_N, n, LogSumExpOf(sampled_) - log_sum_exp_);
    }
    if (options_.entropy) Put(output_.entropy_N, n, entropy_);
  }

 private:
  // An id and its logit, divided by the temperature.
  struct Item {
    double logit;
    int32_t id;
    bool operator<(const Item& other) const {
      return logit > other.logit || (logit == other.logit && id < other.id);
    }
  };

  static void Put(const at::Tensor& to, int64_t i, double value) {
    to.mutable_data_ptr<float>()[i] = static_cast<float>(value);
  }

  void FindNormalizer(int64_t n) {
    normalizers_.clear();
    tails_.clear();
    sampled_.clear();
    for (const SliceScores& slice : slices_) {
      const float* numbers = slice.numbers_N4.const_data_ptr<float>() + n * kNumSliceNumbers;
      const double normalizer = numbers[kLogSumExp];
      normalizers_.push_back(normalizer);
      tails_.push_back(numbers[kLogTail] + normalizer);
      sampled_.push_back(numbers[kSampled] + normalizer);
    }
    log_sum_exp_ = LogSumExpOf(normalizers_);
    entropy_ = 0;
    if (!options_.entropy) return;
    for (size_t r = 0; r < slices_.size(); ++r) {
      const float* numbers = slices_[r].numbers_N4.const_data_ptr<float>() + n * kNumSliceNumbers;
      const double log_share = normalizers_[r] - log_sum_exp_;
      if (log_share == kNegativeInfinity) continue;
      entropy_ += std::exp(log_share) * (numbers[kEntropy] - log_share);
    }
  }

  void CollectIds(int64_t n) {
    items_.clear();
    for (size_t r = 0; r < slices_.size(); ++r) {
      const int64_t k = slices_[r].ids_Nk.size(1);
      for (int64_t j = n * k; j < (n + 1) * k; ++j) {
        const double log_prob = slices_[r].log_probs_Nk.const_data_ptr<float>()[j];
        const double logit = log_prob + normalizers_[r];
        items_.push_back({std::isnan(logit) ? kNegativeInfinity : logit,
                          slices_[r].ids_Nk.const_data_ptr<int32_t>()[j]});
      }
    }
    std::sort(items_.begin(), items_.end());
  }

  const std::vector<SliceScores>& slices_;
  const ScoringOptions& options_;
  ScoringOutput& output_;
  std::vector<double> normalizers_, tails_, sampled_;
  std::vector<Item> items_;
  double log_sum_exp_ = 0;
  double entropy_ = 0;
};

ScoringOutput ScoreByMerging(const at::Tensor& hidden_NH, const HeadMatrix& head_SH,
                             int64_t vocab_size, const at::Tensor& sampled_N,
                             const ScoringOptions& options, Collectives* group) {
  const TensorParallel& place = group->place();
  const SliceScores own = ScoreSlice(hidden_NH, head_SH, vocab_size, sampled_N, options, place);
  const std::vector<int64_t> sizes = SliceSizes(vocab_size, place.size, options.top_k);
  const auto ids = group->GatherToFirst(own.ids_Nk, sizes);
  const auto log_probs = group->GatherToFirst(own.log_probs_Nk, sizes);
  const auto numbers = group->GatherToFirst(
      own.numbers_N4, std::vector<int64_t>(static_cast<size_t>(place.size), kNumSliceNumbers));
  ScoringOutput output;
  if (place.rank != 0) return output;

  std::vector<SliceScores> slices;
  for (size_t r = 0; r < ids.size(); ++r) slices.push_back({ids[r], log_probs[r], numbers[r]});
  const int64_t num_rows = hidden_NH.size(0);
  output.ids_Nk = at::empty({num_rows, options.top_k}, at::kInt);
  output.log_probs_Nk = at::empty({num_rows, options.top_k});
  for (at::Tensor* tensor : {&output.log_tail_N, &output.log_support_mass_N, &output.log_sum_exp_N})
    *tensor = at::empty({num_rows});
  if (sampled_N.defined()) output.sampled_log_probs_N = at::empty({num_rows});
  if (options.entropy) output.entropy_N = at::empty({num_rows});
  RowMerger merger(slices, options, &output);
  for (int64_t n = 0; n < num_rows; ++n) merger.Merge(n);
  return output;
}

ScoringOutput ScoreByGathering(const at::Tensor& hidden_NH, const HeadMatrix& head_SH,
                               int64_t vocab_size, const at::Tensor& sampled_N,
                               const at::Tensor& candidates_NM, const ScoringOptions& options,
                               Collectives* group) {
  const HeadGemm gemm(head_SH);
  const bool is_first = group->place().rank == 0;
  // The buffers are the slices and, on rank 0, the whole logits and a copy of them.
  const int64_t chunk = LogitRowsThatFit(options.workspace_bytes, vocab_size, /*num_buffers=*/3);
  std::vector<ScoringOutput> outputs;
  const int64_t num_rows = hidden_NH.size(0);
  for (int64_t begin = 0; begin < std::max<int64_t>(num_rows, 1); begin += chunk) {
    const int64_t num = std::min(chunk, num_rows - begin);
    const at::Tensor logits_CS =
        at::empty({num, head_SH.vocab_size()}, hidden_NH.options().dtype(at::kFloat));
    gemm.Logits(hidden_NH.narrow(0, begin, num), logits_CS);
    const at::Tensor logits_CV = GatherLogits(logits_CS, vocab_size, group);
    if (!is_first) continue;
    const auto rows = [&](const at::Tensor& ids) {
      return ids.defined() ? ids.narrow(0, begin, num) : ids;
    };
    outputs.push_back(ScoreRowsOfLogits(logits_CV, rows(sampled_N), rows(candidates_NM), options));
  }
  if (outputs.size() <= 1) return outputs.empty() ? ScoringOutput() : outputs[0];
  ScoringOutput all;
  const auto to = all.Tensors();
  for (size_t i = 0; i < to.size(); ++i) {
    std::vector<at::Tensor> parts;
    for (ScoringOutput& output : outputs) {
      if (output.Tensors()[i]->defined()) parts.push_back(*output.Tensors()[i]);
    }
    if (!parts.empty()) *to[i] = at::cat(parts);
  }
  return all;
}

}  // namespace

at::Tensor GatherLogits(const at::Tensor& logits_NS, int64_t vocab_size, Collectives* group) {
  const int64_t num_ranks = group->place().size;
  const auto slices =
      group->GatherToFirst(logits_NS, SliceSizes(vocab_size, num_ranks, vocab_size));
  return slices.empty() ? at::Tensor() : at::cat(slices, 1);
}

ScoringOutput ScoreRowsOfShards(const at::Tensor& hidden_NH, const HeadMatrix& head_SH,
                                int64_t vocab_size, const at::Tensor& sampled_ids_N,
                                const at::Tensor& candidate_ids_NM, const ScoringOptions& options,
                                Collectives* group) {
  const bool needs_logits = options.rank || options.dense || candidate_ids_NM.defined();
  return needs_logits
             ? ScoreByGathering(hidden_NH, head_SH, vocab_size, sampled_ids_N, candidate_ids_NM,
                                options, group)
             : ScoreByMerging(hidden_NH, head_SH, vocab_size, sampled_ids_N, options, group);
}

}  // namespace taopd
