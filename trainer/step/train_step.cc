#include "trainer/step/train_step.h"

#include <c10/core/InferenceMode.h>

#include <cmath>
#include <memory>
#include <utility>

#include "common/base/log.h"
#include "trainer/step/full_kl.h"
#include "trainer/step/loss/forward_backward.h"
#include "trainer/step/loss/micro_batches.h"
#include "trainer/step/rollout_requests.h"
#include "trainer/step/scored_batch.h"
#include "trainer/step/step_metrics.h"
#include "trainer/step/support.h"

namespace taopd {
namespace {

// The head measures the overlap of the two top-k on the teacher's support. That of a union follows
// from its size.
bool HeadMeasuresOverlap(const TrainConfig& config, const SupportOptions& support) {
  return config.objective.overlap &&
         (support.kind == SupportKind::kTeacher || support.kind == SupportKind::kFullVocabulary);
}

// A step in progress: its phases, and what they share.
class Step {
 public:
  Step(const StepContext& context, int64_t number, double lr,
       const std::vector<const PromptRecord*>& prompts)
      : context_(context),
        number_(number),
        prompts_(prompts),
        start_(context.clock->Now()),
        times_(context.clock, context.timeline),
        support_(MakeSupportOptions(*context.config, context.student->config().vocab_size)),
        head_(context.head) {
    head_.top_k_metrics = HeadMeasuresOverlap(*context.config, support_);
    record_.lr = lr;
    PackWeights();
    batch_ = ScoredBatch::Start(context.rollout_engine, context.teacher,
                                MakeRolloutRequests(*context.config, number, prompts), support_,
                                Concat("step-", number + 1), context.timeline);
  }
  // The engine reads the student's weights until the last rollout has ended.
  ~Step() { batch_->WaitAllGenerated(); }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  int64_t num_rollouts() const { return batch_->size(); }
  bool weights_changed() const { return record_.num_updates > 0; }

  absl::Status WaitForScores(int64_t begin, int64_t end);
  // Waits for what the other mini-batches need of the teacher. After the first update, nothing but
  // a lack of memory can make the step fail.
  absl::Status WaitForAllScores();
  RowSums ComputeGradients(int64_t begin, int64_t end);
  void UpdateOrSkip(const RowSums& sums, int64_t begin, int64_t end);
  StepResult Finish();

 private:
  void PackWeights();
  void ReportBadBatch(const RowSums& sums, double grad_norm, int64_t begin, int64_t end);

  const StepContext& context_;
  const int64_t number_;
  const std::vector<const PromptRecord*>& prompts_;
  const absl::Time start_;
  PhaseTimes times_;
  const SupportOptions support_;
  HeadOptions head_;
  std::shared_ptr<ScoredBatch> batch_;
  StepRecord record_;
};

// The engine would do the same before its first token; here it is seen.
void Step::PackWeights() {
  const PhaseTimer timer(&times_, Phase::kPack);
  const c10::InferenceMode inference;
  context_.student->PrepareInference(/*with_head=*/true);
}

absl::Status Step::WaitForAllScores() {
  if (weights_changed()) return absl::OkStatus();
  {
    const PhaseTimer timer(&times_, Phase::kRollout);
    TAOPD_RETURN_IF_ERROR(batch_->WaitGenerated(0, batch_->size(), context_.on_wait));
  }
  const PhaseTimer timer(&times_, Phase::kScoreWait);
  return batch_->WaitScored(0, batch_->size(), context_.on_wait);
}

absl::Status Step::WaitForScores(int64_t begin, int64_t end) {
  {
    const PhaseTimer timer(&times_, Phase::kRollout);
    TAOPD_RETURN_IF_ERROR(batch_->WaitGenerated(begin, end, context_.on_wait));
  }
  const PhaseTimer timer(&times_, Phase::kScoreWait);
  TAOPD_RETURN_IF_ERROR(batch_->WaitScored(begin, end, context_.on_wait));
  // Before the first update, on its mini-batch. The dense scores are a wait for the teacher, too.
  if (begin == 0 && context_.config->objective.full_kl_rows > 0 &&
      support_.kind != SupportKind::kFullVocabulary) {
    TAOPD_RETURN_IF_ERROR(
        MeasureFullKl(context_, *batch_, support_, end, number_, &record_.full_kl));
  }
  return absl::OkStatus();
}

// Returns the step's sums with those of this mini-batch added.
RowSums Step::ComputeGradients(int64_t begin, int64_t end) {
  std::vector<int64_t> response_lengths, num_tokens;
  for (const ScoredRollout* item : batch_->Items(begin, end)) {
    response_lengths.push_back(static_cast<int64_t>(item->rollout.response_ids.size()));
    num_tokens.push_back(NumInputTokens(item->rollout));
  }
  std::vector<double> weights = SequenceWeights(context_.aggregation, response_lengths);
  for (int64_t i = begin; i < end; ++i) weights[i - begin] *= batch_->item(i).scores.weight;
  RowSums sums = record_.sums;
  ForwardBackwardOptions options;
  options.veto_rho_below = context_.config->objective.veto_rho_below;
  options.times = &times_;
  options.forward.recompute = RecomputeOf(context_.config->trainer);
  int64_t first = 0, bad_sequence = -1, bad_row = -1;
  const std::vector<int64_t> ends =
      MicroBatchEnds(num_tokens, context_.config->trainer.MicroBatchTokens());
  for (const int64_t last : ends) {
    if (last == ends.back()) options.forward.on_layer_backward = context_.on_gradients_complete;
    ForwardBackward(context_.student, head_, batch_->Items(begin + first, begin + last),
                    {weights.begin() + first, weights.begin() + last}, &sums, options);
    if (bad_sequence < 0 && sums.bad_sequence >= 0) {
      bad_sequence = first + sums.bad_sequence;
      bad_row = sums.bad_row;
    }
    first = last;
  }
  sums.bad_sequence = bad_sequence;
  sums.bad_row = bad_row;
  return sums;
}

// The sums so far are finite, so `sums` is finite if and only if this mini-batch's loss is.
void Step::UpdateOrSkip(const RowSums& sums, int64_t begin, int64_t end) {
  batch_->WaitAllGenerated();
  const PhaseTimer timer(&times_, Phase::kOptimizer);
  const double grad_norm = context_.optimizer->GradientNorm();
  if (!std::isfinite(grad_norm) || !std::isfinite(sums.weighted_loss)) {
    ReportBadBatch(sums, grad_norm, begin, end);
    context_.optimizer->ClearGradients();
    ++record_.num_skipped_updates;
    return;
  }
  context_.optimizer->Update(record_.lr, grad_norm);
  record_.sums = sums;
  record_.grad_norm_sum += grad_norm;
  ++record_.num_updates;
}

void Step::ReportBadBatch(const RowSums& sums, double grad_norm, int64_t begin, int64_t end) {
  BadBatch bad;
  bad.step = number_ + 1;
  bad.mini_batch = begin / (end - begin);
  bad.loss = sums.weighted_loss - record_.sums.weighted_loss;
  bad.grad_norm = grad_norm;
  bad.sequences = batch_->Items(begin, end);
  bad.bad_sequence = sums.bad_sequence;
  bad.bad_row = sums.bad_row;
  if (bad.bad_sequence >= 0) {
    bad.prompt_id = prompts_[(begin + bad.bad_sequence) / context_.config->rollout.n]->id;
  }
  LogWarning("update skipped: the loss or its gradient is not finite",
             {{"step", bad.step},
              {"mini_batch", bad.mini_batch},
              {"loss", bad.loss},
              {"grad_norm", grad_norm},
              {"rollout", bad.bad_sequence >= 0 ? begin + bad.bad_sequence : -1},
              {"row", bad.bad_row},
              {"prompt", bad.prompt_id}});
  context_.on_bad_batch(bad);
}

StepResult Step::Finish() {
  batch_->WaitIdle();
  StepResult result;
  for (int64_t i = 0; i < batch_->size(); ++i) {
    record_.num_beyond_vocabulary += batch_->item(i).scores.num_beyond_vocabulary;
    result.rollouts.push_back(batch_->item(i).rollout);
  }
  record_.duration = context_.clock->Now() - start_;
  result.metrics = MakeStepMetrics(record_, times_, support_, head_, result.rollouts);
  result.num_skipped_updates = record_.num_skipped_updates;
  return result;
}

}  // namespace

absl::StatusOr<StepResult> TrainOneStep(const StepContext& context, int64_t step_number, double lr,
                                        const std::vector<const PromptRecord*>& prompts) {
  // 1. Roll out with the current weights. Each finished rollout goes to the teacher at once.
  Step step(context, step_number, lr, prompts);

  const int64_t sequences_per_mini =
      context.config->trainer.mini_batch_size * context.config->rollout.n;
  for (int64_t begin = 0; begin < step.num_rollouts(); begin += sequences_per_mini) {
    const int64_t end = begin + sequences_per_mini;

    // 2. Wait for this mini-batch's scores. The rollouts and scores of the others go on.
    if (absl::Status scored = step.WaitForScores(begin, end); !scored.ok()) {
      context.optimizer->ClearGradients();
      return scored;
    }

    // 3. Loss and gradients, in micro-batches of bounded size.
    const RowSums sums = step.ComputeGradients(begin, end);

    // 4. Update, once no rollout reads the weights any more and no score is missing, or skip numbers
    // that are not finite.
    if (absl::Status scored = step.WaitForAllScores(); !scored.ok()) {
      context.optimizer->ClearGradients();
      return scored;
    }
    step.UpdateOrSkip(sums, begin, end);
  }

  // 5. What happened.
  return step.Finish();
}

}  // namespace taopd
