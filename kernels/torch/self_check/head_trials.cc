#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/torch/composed/head_products.h"
#include "kernels/torch/composed/scoring_rows.h"
#include "kernels/torch/composed/student_head.h"
#include "kernels/torch/head/cuda_heads.h"
#include "kernels/torch/self_check/trial.h"

namespace taopd {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{256} << 20;
// Random logits are of this size, as a model's are.
constexpr double kLogitSize = 4;

struct RandomHead {
  RandomHead(const SelfCheckShape& shape, uint64_t seed) : random(shape.device, seed) {
    hidden_NH = random.Normal({shape.num_rows, shape.hidden_size}, shape.dtype);
    lm_head_VH = random.Normal({shape.vocab_size, shape.hidden_size}, shape.dtype,
                               kLogitSize / std::sqrt(static_cast<double>(shape.hidden_size)));
    sampled_N = random.Ids({shape.num_rows}, shape.vocab_size);
  }

  RandomNumbers random;
  at::Tensor hidden_NH, lm_head_VH;
  at::Tensor sampled_N;  // int32, on the device
};

// sc_ta_opd, whose gradient has a dense part, a part on the support and one on the sampled token.
// The first row has padding.
class StudentHeadTrial final : public Trial {
 public:
  StudentHeadTrial(const SelfCheckShape& shape, const DeviceKernels& kernels, uint64_t seed)
      : shape_(shape), kernels_(kernels), head_(shape, seed) {
    const int64_t N = shape.num_rows;
    const int64_t k = std::clamp<int64_t>(shape.top_k, 1, shape.vocab_size);
    const at::Tensor teacher_NV =
        head_.random.Normal({N, shape.vocab_size}, at::kFloat, 2).log_softmax(1);
    auto [log_q_Nk, ids_Nk] = teacher_NV.topk(k, 1);
    targets_.teacher_log_tail_N =
        teacher_NV.scatter(1, ids_Nk, -std::numeric_limits<double>::infinity()).logsumexp(1);
    targets_.support_ids_Nk = ids_Nk.to(at::kInt).contiguous();
    if (k > 1) targets_.support_ids_Nk[0][k - 1].fill_(-1);
    targets_.teacher_log_probs_Nk = log_q_Nk.contiguous();
    targets_.sampled_ids_N = head_.sampled_N;
    targets_.teacher_sampled_log_probs_N =
        teacher_NV.gather(1, head_.sampled_N.to(at::kLong).unsqueeze(1)).squeeze(1).contiguous();
    targets_.row_weights_N = head_.random.Uniform({N}, at::kFloat);
    options_.objective = FindObjective("sc_ta_opd").value();
    options_.top_k_metrics = k <= kMaxTopKMetrics;  // as in training
    options_.workspace_bytes = kWorkspaceBytes;
  }

  void RunCustom() override {
    const at::Tensor d_lm_head = Zeros();
    custom_ = Named(
        StudentHeadCuda(head_.hidden_NH, head_.lm_head_VH, targets_, options_, d_lm_head, kernels_),
        d_lm_head);
  }

  void RunComposed() override {
    const at::Tensor d_lm_head = Zeros();
    composed_ =
        Named(StudentHeadComposed(head_.hidden_NH, head_.lm_head_VH, targets_, options_, d_lm_head),
              d_lm_head);
  }

  std::vector<OutputError> Errors() const override { return Compare(custom_, composed_); }

 private:
  at::Tensor Zeros() const {
    return at::zeros(head_.lm_head_VH.sizes(), head_.lm_head_VH.options().dtype(at::kFloat));
  }
  std::vector<NamedTensor> Named(const HeadOutput& output, const at::Tensor& d_lm_head) const {
    const double allowed = AllowedFor(shape_.dtype);
    // Near ties may come in another order, so the overlap of the two top-k is not compared.
    return {{"loss", output.loss_N, kLogProbAllowed, true},
            {"metrics", output.metrics_NM.narrow(1, 0, kTopKOverlap), kLogProbAllowed, true},
            {"d hidden", output.d_hidden_NH, allowed},
            {"d lm_head", d_lm_head, allowed}};
  }

  const SelfCheckShape shape_;
  const DeviceKernels& kernels_;
  RandomHead head_;
  HeadTargets targets_;
  HeadOptions options_;
  std::vector<NamedTensor> custom_, composed_;
};

// Near ties may come in another order, so ids are checked by their log-probs, and ranks by the
// numbers of log-probs that are surely and possibly at least the sampled token's.
class ScoringHeadTrial final : public Trial {
 public:
  ScoringHeadTrial(const SelfCheckShape& shape, const DeviceKernels& kernels, uint64_t seed)
      : shape_(shape), kernels_(kernels), head_(shape, seed), sampled_N_(head_.sampled_N.cpu()) {
    const int64_t most = std::min<int64_t>(kMaxScoringTopK, shape.vocab_size);
    options_.top_k = static_cast<int32_t>(std::clamp<int64_t>(shape.top_k, 1, most));
    options_.entropy = true;
    options_.rank = true;
    options_.workspace_bytes = kWorkspaceBytes;
    candidates_NM_ = head_.random.Ids({shape.num_rows, kCandidates}, shape.vocab_size).cpu();
    // One that is among the top-k, and one that occurs twice.
    candidates_NM_.select(1, 0).copy_(Logits().argmax(1));
    candidates_NM_.select(1, 1).copy_(candidates_NM_.select(1, 2));
  }

  void RunCustom() override {
    custom_ = Allocated();
    ScoreRowsOfHeadCuda(head_.hidden_NH, head_.lm_head_VH, sampled_N_, candidates_NM_, options_,
                        &custom_, kernels_);
  }

  void RunComposed() override {
    composed_ = Allocated();
    ScoringRowsComposed(Logits(), sampled_N_, candidates_NM_, options_, 0, &composed_);
  }

  std::vector<OutputError> Errors() const override {
    std::vector<OutputError> errors = Compare(Named(custom_), Named(composed_));
    const at::Tensor log_p_NV = Logits().log_softmax(1).cpu();
    const at::Tensor id_log_probs_Nk =
        log_p_NV.gather(1, custom_.ids_Nk.to(at::kLong).clamp(0, shape_.vocab_size - 1));
    errors.push_back(
        Compare({"ids", id_log_probs_Nk, kLogProbAllowed, true}, composed_.log_probs_Nk));
    const at::Tensor own_N1 = log_p_NV.gather(1, sampled_N_.to(at::kLong).unsqueeze(1));
    const at::Tensor surely_N = log_p_NV.gt(own_N1 + kLogProbAllowed).sum(1);
    const at::Tensor possibly_N = log_p_NV.ge(own_N1 - kLogProbAllowed).sum(1);
    const at::Tensor clamped_N =
        at::minimum(at::maximum(custom_.sampled_ranks_N.to(at::kLong), surely_N), possibly_N);
    errors.push_back(Compare({"ranks", custom_.sampled_ranks_N, 0}, clamped_N));
    return errors;
  }

 private:
  static constexpr int64_t kCandidates = 4;

  at::Tensor Logits() const {
    at::Tensor logits_NV = at::empty({shape_.num_rows, shape_.vocab_size},
                                     head_.hidden_NH.options().dtype(at::kFloat));
    HeadLogitsComposed(head_.hidden_NH, head_.lm_head_VH, logits_NV);
    return logits_NV;
  }

  ScoringOutput Allocated() const {
    const int64_t N = shape_.num_rows, k = options_.top_k;
    ScoringOutput output;
    output.ids_Nk = at::empty({N, k}, at::kInt);
    output.log_probs_Nk = at::empty({N, k}, at::kFloat);
    output.sampled_ranks_N = at::empty({N}, at::kInt);
    output.candidate_log_probs_NM = at::empty({N, kCandidates}, at::kFloat);
    for (at::Tensor* tensor :
         {&output.log_tail_N, &output.log_support_mass_N, &output.log_sum_exp_N,
          &output.sampled_log_probs_N, &output.entropy_N, &output.candidate_log_tail_N}) {
      *tensor = at::empty({N}, at::kFloat);
    }
    return output;
  }
  static std::vector<NamedTensor> Named(const ScoringOutput& output) {
    return {{"log-probs", output.log_probs_Nk, kLogProbAllowed, true},
            {"log tail", output.log_tail_N, kLogProbAllowed, true},
            {"log support mass", output.log_support_mass_N, kLogProbAllowed, true},
            {"log-sum-exp", output.log_sum_exp_N, kLogProbAllowed, true},
            {"sampled log-probs", output.sampled_log_probs_N, kLogProbAllowed, true},
            {"entropy", output.entropy_N, kLogProbAllowed, true},
            {"candidates", output.candidate_log_probs_NM, kLogProbAllowed, true},
            {"candidate log tail", output.candidate_log_tail_N, kLogProbAllowed, true}};
  }

  const SelfCheckShape shape_;
  const DeviceKernels& kernels_;
  RandomHead head_;
  const at::Tensor sampled_N_;  // on the CPU
  at::Tensor candidates_NM_;    // int32, on the CPU
  ScoringOptions options_;
  ScoringOutput custom_, composed_;
};

}  // namespace

std::vector<TrialKind> HeadTrials() {
  return {{KernelKind::kStudentHead, NewTrial<StudentHeadTrial>, /*only_training=*/true},
          {KernelKind::kScoringHead, NewTrial<ScoringHeadTrial>, /*only_training=*/false}};
}

}  // namespace taopd
