#include "trainer/step/loss/forward_backward.h"

#include "trainer/step/loss/head_targets.h"

namespace taopd {
namespace {

// What the rows say. The tensors are on the CPU and contiguous.
struct RowResults {
  at::Tensor loss_N;
  at::Tensor loss_metrics_NM;  // from the pass that gave the loss
  at::Tensor metrics_NM;       // on the support that the metrics are defined on
  at::Tensor behavior_log_probs_N;
  at::Tensor row_weights_N;
};

void AddRows(const RowResults& rows, RowSums* sums) {
  const float* losses = rows.loss_N.const_data_ptr<float>();
  const float* loss_metrics = rows.loss_metrics_NM.const_data_ptr<float>();
  const float* metrics = rows.metrics_NM.const_data_ptr<float>();
  const float* behavior = rows.behavior_log_probs_N.const_data_ptr<float>();
  const float* weights = rows.row_weights_N.const_data_ptr<float>();
  const int64_t num_rows = rows.loss_N.size(0);
  for (int64_t n = 0; n < num_rows; ++n) {
    sums->loss += losses[n];
    sums->weighted_loss += static_cast<double>(losses[n]) * weights[n];
    for (int m = 0; m < kNumHeadMetrics; ++m) {
      sums->head_metrics[m] += metrics[n * kNumHeadMetrics + m];
    }
    for (int i = 0; i < kMaxObjectiveTerms; ++i) {
      sums->term_loss[i] += loss_metrics[n * kNumHeadMetrics + kTermLoss + i];
    }
    sums->behavior_gap += behavior[n] - metrics[n * kNumHeadMetrics + kSampledLogProb];
  }
  sums->num_rows += num_rows;
}

}  // namespace

void ForwardBackward(Decoder* student, const HeadOptions& head,
                     const std::vector<const ScoredRollout*>& sequences,
                     const std::vector<double>& weights, RowSums* sums) {
  const HeadTargets targets = MakeHeadTargets(sequences, weights, student->device());
  const bool full_vocabulary = (NeedsOf(head.objective) & kNeedsFullVocabulary) != 0;
  const int64_t vocab_size = student->config().vocab_size;

  const at::Tensor hidden_NH = ForwardResponses(student, sequences);
  HeadOutput output;
  HeadOptions loss_head = head;
  loss_head.top_k_metrics = head.top_k_metrics && !full_vocabulary;
  const at::Tensor loss = StudentHeadLoss(
      hidden_NH, student->lm_head(),
      full_vocabulary ? WithFullVocabulary(targets, sequences, vocab_size) : targets, loss_head,
      &output);
  loss.backward();

  RowResults rows;
  rows.loss_N = output.loss_N.to(at::kCPU).contiguous();
  rows.loss_metrics_NM = output.metrics_NM.contiguous();
  rows.metrics_NM = rows.loss_metrics_NM;
  rows.behavior_log_probs_N = targets.behavior_log_probs_N.to(at::kCPU).contiguous();
  rows.row_weights_N = targets.row_weights_N.to(at::kCPU).contiguous();
  if (full_vocabulary) {
    HeadOptions metrics_head = head;
    metrics_head.objective = *FindObjective("ta_opd");
    const HeadOutput top_k = StudentHead(hidden_NH.detach(), student->lm_head().detach(), targets,
                                         metrics_head, at::Tensor());
    sums->ta_loss += top_k.loss_N.to(at::kCPU, at::kDouble).sum().item<double>();
    rows.metrics_NM = top_k.metrics_NM.contiguous();
  }
  AddRows(rows, sums);
  for (const ScoredRollout* sequence : sequences) sums->num_shared += sequence->scores.num_shared;
}

}  // namespace taopd
