#include "trainer/step/loss/forward_backward.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "trainer/optim/parameter_layout.h"
#include "trainer/step/loss/head_targets.h"

namespace taopd {
namespace {

// The results by row. The tensors are on the CPU and contiguous.
struct RowResults {
  at::Tensor loss_N;
  at::Tensor loss_metrics_NM;  // from the pass that computed the loss
  at::Tensor metrics_NM;       // on the support for which the metrics are defined
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
      // The pass that computed the loss knows the effect of guards and clips on rho.
      const bool is_of_loss = m == kRhoTruncated || m == kRhoMasked || m == kRhoClipped;
      sums->head_metrics[m] += (is_of_loss ? loss_metrics : metrics)[n * kNumHeadMetrics + m];
    }
    for (int i = 0; i < kMaxObjectiveTerms; ++i) {
      sums->term_loss[i] += loss_metrics[n * kNumHeadMetrics + kTermLoss + i];
    }
    if (std::isnan(behavior[n])) {  // a given response
      ++sums->num_given_rows;
      continue;
    }
    const float log_p = metrics[n * kNumHeadMetrics + kSampledLogProb];
    sums->behavior_gap += behavior[n] - log_p;
    sums->gaps.Add(behavior[n] - log_p);
    const double rho = std::exp(static_cast<double>(log_p) - behavior[n]);
    sums->rho += rho;
    sums->rho_square += rho * rho;
  }
  sums->num_rows += num_rows;
}

void FindBadRow(const at::Tensor& loss_N, const std::vector<const ScoredRollout*>& sequences,
                RowSums* sums) {
  const float* loss = loss_N.const_data_ptr<float>();
  sums->bad_sequence = sums->bad_row = -1;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto num_rows = static_cast<int64_t>(sequences[i]->rollout.response_ids.size());
    for (int64_t row = 0; row < num_rows; ++row) {
      if (std::isfinite(*loss++)) continue;
      sums->bad_sequence = static_cast<int64_t>(i);
      sums->bad_row = row;
      return;
    }
  }
}

// Sets the weight to 0 for each response with a token whose rho is below the limit. Returns the
// number of these responses.
int64_t VetoResponses(const at::Tensor& hidden_NH, const at::Tensor& lm_head_VH,
                      const HeadOptions& head, const std::vector<const ScoredRollout*>& sequences,
                      double veto_rho_below, HeadTargets* targets) {
  HeadOptions plain = head;
  plain.objective = *FindObjective("cross_entropy");  // only for log p(y)
  plain.top_k_metrics = false;
  const HeadOutput output =
      StudentHead(hidden_NH.detach(), lm_head_VH.detach(), *targets, plain, at::Tensor());
  const at::Tensor metrics_NM = output.metrics_NM.contiguous();
  const float* metrics = metrics_NM.const_data_ptr<float>();
  at::Tensor weights_N = targets->row_weights_N.to(at::kCPU).clone();
  float* weights = weights_N.mutable_data_ptr<float>();
  int64_t num_vetoed = 0;
  for (const ScoredRollout* sequence : sequences) {
    const auto num_rows = static_cast<int64_t>(sequence->rollout.response_ids.size());
    bool is_vetoed = false;
    for (int64_t row = 0; row < num_rows; ++row) {
      const double log_rho = static_cast<double>(metrics[row * kNumHeadMetrics + kSampledLogProb]) -
                             sequence->rollout.behavior_log_probs[row];
      is_vetoed |= log_rho < std::log(veto_rho_below);
    }
    if (is_vetoed) std::fill_n(weights, num_rows, 0.0f);
    num_vetoed += is_vetoed ? 1 : 0;
    weights += num_rows;
    metrics += num_rows * kNumHeadMetrics;
  }
  if (num_vetoed > 0) targets->row_weights_N = weights_N.to(targets->row_weights_N.device());
  return num_vetoed;
}

// Ends a phase when the device has done its work, not when the work has been queued.
class DevicePhaseTimer {
 public:
  DevicePhaseTimer(PhaseTimes* times, Phase phase, at::Device device)
      : device_(device), timer_(times, phase), waits_(times != nullptr && !device.is_cpu()) {}
  ~DevicePhaseTimer() {
    if (!waits_) return;
    const c10::impl::VirtualGuardImpl device(device_.type());
    device.synchronizeStream(device.getStream(device_));
  }

 private:
  const at::Device device_;
  const PhaseTimer timer_;  // stops after the destructor above has run
  const bool waits_;
};

}  // namespace

absl::Status ForwardBackward(Decoder* student, const HeadOptions& head,
                             const std::vector<const ScoredRollout*>& sequences,
                             const std::vector<double>& weights, RowSums* sums,
                             const ForwardBackwardOptions& options) {
  const bool full_vocabulary = (TraitsOf(head.objective) & kNeedsFullVocabulary) != 0;
  const int64_t vocab_size = student->config().vocab_size;

  at::Tensor hidden_NH;
  {
    const DevicePhaseTimer timer(options.times, Phase::kForward, student->device());
    hidden_NH = ForwardResponses(student, sequences, options.forward);
  }
  if (options.before_scores) TAOPD_RETURN_IF_ERROR(options.before_scores());
  HeadTargets targets = MakeHeadTargets(sequences, weights, student->device());
  HeadOutput output;
  HeadOptions loss_head = head;
  loss_head.top_k_metrics = head.top_k_metrics && !full_vocabulary;
  at::Tensor loss;
  {
    const DevicePhaseTimer timer(options.times, Phase::kHead, student->device());
    if (options.veto_rho_below > 0) {
      sums->num_vetoed += VetoResponses(hidden_NH, student->lm_head(), head, sequences,
                                        options.veto_rho_below, &targets);
    }
    loss = StudentHeadLoss(
        hidden_NH, student->lm_head(),
        full_vocabulary ? WithFullVocabulary(targets, sequences, vocab_size) : targets, loss_head,
        &output);
  }
  {
    const DevicePhaseTimer timer(options.times, Phase::kBackward, student->device());
    loss.backward();
    if (options.forward.on_layer_backward) options.forward.on_layer_backward(kEmbeddingLayer);
  }

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
  FindBadRow(rows.loss_N, sequences, sums);
  for (const ScoredRollout* sequence : sequences) sums->num_shared += sequence->scores.num_shared;
  return absl::OkStatus();
}

}  // namespace taopd
