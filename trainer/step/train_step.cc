#include "trainer/step/train_step.h"

#include <c10/core/InferenceMode.h>

#include <cmath>
#include <memory>
#include <utility>

#include "common/base/log.h"
#include "trainer/dist/rank_sums.h"
#include "trainer/dist/sharded_optimizer.h"
#include "trainer/step/balance/deal.h"
#include "trainer/step/full_kl.h"
#include "trainer/step/loss/forward_backward.h"
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

// Adds up over the ranks what ForwardBackward has summed over this rank's rows.
absl::Status SumOverRanks(ProcessGroup* group, RowSums* sums) {
  RankSums all;
  all.Add(&sums->loss);
  all.Add(&sums->weighted_loss);
  for (double& metric : sums->head_metrics) all.Add(&metric);
  for (double& term : sums->term_loss) all.Add(&term);
  all.Add(&sums->behavior_gap);
  all.Add(&sums->ta_loss);
  all.Add(&sums->num_shared);
  all.Add(&sums->num_rows);
  all.Add(&sums->rho);
  all.Add(&sums->rho_square);
  all.Add(&sums->num_vetoed);
  return all.Reduce(group);
}

void AddSums(const RowSums& from, RowSums* sums) {
  sums->loss += from.loss;
  sums->weighted_loss += from.weighted_loss;
  for (int m = 0; m < kNumHeadMetrics; ++m) sums->head_metrics[m] += from.head_metrics[m];
  for (int i = 0; i < kMaxObjectiveTerms; ++i) sums->term_loss[i] += from.term_loss[i];
  sums->behavior_gap += from.behavior_gap;
  sums->ta_loss += from.ta_loss;
  sums->num_shared += from.num_shared;
  sums->num_rows += from.num_rows;
  sums->rho += from.rho;
  sums->rho_square += from.rho_square;
  sums->num_vetoed += from.num_vetoed;
}

// A step in progress: its phases, and what they share. Mini-batches are numbered from 0; each has
// as many sequences on this rank, which follow each other in the ScoredBatch.
class Step {
 public:
  Step(const StepContext& context, int64_t number, double lr,
       const std::vector<const PromptRecord*>& prompts)
      : context_(context),
        number_(number),
        alone_(ProcessGroup::Alone()),
        group_(context.group != nullptr ? context.group : alone_.get()),
        sequences_per_mini_(context.config->trainer.mini_batch_size * context.config->rollout.n),
        mine_(context.shares.AllMine(sequences_per_mini_)),
        shares_(context.shares.Mine(sequences_per_mini_)),
        optimizer_(context.optimizer, group_, static_cast<int64_t>(shares_.size())),
        start_(context.clock->Now()),
        times_(context.clock, context.timeline),
        support_(MakeSupportOptions(*context.config, context.student->config().vocab_size)),
        head_(context.head),
        all_prompts_(prompts) {
    head_.top_k_metrics = HeadMeasuresOverlap(*context.config, support_);
    record_.lr = lr;
    PackWeights();
    batch_ = ScoredBatch::Start(context.rollout_engine, context.teacher, TakeMine(prompts),
                                support_, BatchName(), context.timeline);
  }
  // The engine reads the student's weights until the last rollout has ended.
  ~Step() { batch_->WaitAllGenerated(); }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  int64_t num_mini_batches() const {
    return context_.config->data.train_batch_size / context_.config->trainer.mini_batch_size;
  }
  bool weights_changed() const { return record_.num_updates > 0; }

  // Waits until all ranks have their scores, and the same error on all of them; one rank alone waits
  // for the rollouts, and for the scores in ComputeGradients, behind its forward pass.
  absl::Status WaitForRollouts(int64_t mini_batch);
  // Waits for what the other mini-batches need of the teacher. After the first update, nothing but
  // a lack of memory or of ranks can make the step fail.
  absl::Status WaitForAllScores();
  // Returns the step's sums over all ranks, with those of this mini-batch added.
  absl::StatusOr<RowSums> ComputeGradients(int64_t mini_batch);
  absl::Status UpdateOrSkip(const RowSums& sums, int64_t mini_batch);
  absl::StatusOr<StepResult> Finish();

 private:
  void PackWeights();
  std::vector<RolloutRequest> TakeMine(const std::vector<const PromptRecord*>& prompts);
  std::string BatchName() const;
  bool is_alone() const { return group_->world_size() == 1; }
  absl::Status WaitForMyRollouts(int64_t mini_batch);
  absl::Status WaitForMyScores(int64_t mini_batch);
  // What this rank trains on.
  absl::StatusOr<DealtMiniBatch> Deal(int64_t mini_batch);
  // Lets the ranks that have more micro-batches than this one send theirs.
  absl::Status JoinOtherPasses(int64_t num_done, int64_t num_passes);
  absl::Status ReportBadBatch(const RowSums& sums, double grad_norm, int64_t mini_batch);
  // Of sequence `sequence` of the mini-batch.
  const PromptRecord* PromptOf(int64_t mini_batch, int64_t sequence) const {
    const int64_t i = mini_batch * sequences_per_mini_ + sequence;
    return all_prompts_[i / context_.config->rollout.n];
  }
  int64_t begin_of(int64_t mini_batch) const { return mini_batch * mine_.size(); }

  const StepContext& context_;
  const int64_t number_;
  const std::unique_ptr<ProcessGroup> alone_;
  ProcessGroup* const group_;
  const int64_t sequences_per_mini_;         // on all ranks
  const SequenceRange mine_;                 // of a mini-batch's
  const std::vector<SequenceRange> shares_;  // of mine_
  ShardedOptimizer optimizer_;
  const absl::Time start_;
  PhaseTimes times_;
  const SupportOptions support_;
  HeadOptions head_;
  const std::vector<const PromptRecord*> all_prompts_;  // of the step, on all ranks
  std::vector<const PromptRecord*> prompts_;            // of each sequence of the batch
  std::shared_ptr<ScoredBatch> batch_;
  DealtMiniBatch dealt_;  // the present mini-batch
  StepRecord record_;
};

// The engine would do the same before its first token; here it is seen.
void Step::PackWeights() {
  const PhaseTimer timer(&times_, Phase::kPack);
  const c10::InferenceMode inference;
  context_.student->PrepareInference();
}

std::vector<RolloutRequest> Step::TakeMine(const std::vector<const PromptRecord*>& prompts) {
  std::vector<RolloutRequest> all = MakeRolloutRequests(*context_.config, number_, prompts);
  std::vector<RolloutRequest> mine;
  for (int64_t mini_batch = 0; mini_batch < num_mini_batches(); ++mini_batch) {
    const int64_t first = mini_batch * sequences_per_mini_;
    for (int64_t i = first + mine_.begin; i < first + mine_.end; ++i) {
      mine.push_back(std::move(all[i]));
      prompts_.push_back(prompts[i / context_.config->rollout.n]);
    }
  }
  return mine;
}

std::string Step::BatchName() const {
  std::string name = Concat("step-", number_ + 1);
  if (group_->world_size() > 1) name += Concat("-rank-", group_->rank());
  return name;
}

absl::Status Step::WaitForAllScores() {
  if (weights_changed()) return absl::OkStatus();
  absl::Status status;
  {
    const PhaseTimer timer(&times_, Phase::kRollout);
    status = batch_->WaitGenerated(0, batch_->size(), context_.on_wait);
  }
  const PhaseTimer timer(&times_, Phase::kScoreWait);
  if (status.ok()) status = batch_->WaitScored(0, batch_->size(), context_.on_wait);
  return group_->AgreeOnStatus(status);
}

absl::Status Step::WaitForRollouts(int64_t mini_batch) {
  if (is_alone()) return WaitForMyRollouts(mini_batch);
  const absl::Status mine = WaitForMyScores(mini_batch);
  const PhaseTimer timer(&times_, Phase::kScoreWait);
  return group_->AgreeOnStatus(mine);
}

absl::Status Step::WaitForMyRollouts(int64_t mini_batch) {
  const int64_t begin = begin_of(mini_batch), end = begin + mine_.size();
  const PhaseTimer timer(&times_, Phase::kRollout);
  return batch_->WaitGenerated(begin, end, context_.on_wait);
}

absl::Status Step::WaitForMyScores(int64_t mini_batch) {
  TAOPD_RETURN_IF_ERROR(WaitForMyRollouts(mini_batch));
  const int64_t begin = begin_of(mini_batch), end = begin + mine_.size();
  const PhaseTimer timer(&times_, Phase::kScoreWait);
  TAOPD_RETURN_IF_ERROR(batch_->WaitScored(begin, end, context_.on_wait));
  // Before the first update, on its mini-batch. The dense scores are a wait for the teacher, too.
  const int64_t num_rows = context_.config->objective.full_kl_rows;
  if (mini_batch == 0 && num_rows > 0 && support_.kind != SupportKind::kFullVocabulary) {
    const int64_t world_size = group_->world_size();
    TAOPD_RETURN_IF_ERROR(MeasureFullKl(context_, *batch_, support_, end,
                                        (num_rows + world_size - 1) / world_size, number_,
                                        &record_.full_kl));
  }
  return absl::OkStatus();
}

absl::StatusOr<DealtMiniBatch> Step::Deal(int64_t mini_batch) {
  DealInput input;
  input.model = &context_.student->config();
  input.shares = context_.shares;
  input.aggregation = context_.aggregation;
  input.micro_batch_tokens = context_.config->trainer.MicroBatchTokens();
  // A response's dense scores are as large as a model.
  input.evens_out = support_.kind != SupportKind::kFullVocabulary;
  for (int64_t i = 0; i < sequences_per_mini_; ++i) {
    input.prompt_lengths.push_back(
        static_cast<int64_t>(PromptOf(mini_batch, i)->prompt_ids.size()));
  }
  input.item = [this, mini_batch](int64_t sequence) -> const ScoredRollout& {
    return batch_->item(begin_of(mini_batch) + sequence - mine_.begin);
  };
  return DealMiniBatch(input, group_);
}

absl::Status Step::JoinOtherPasses(int64_t num_done, int64_t num_passes) {
  for (; num_done < num_passes; ++num_done) {
    optimizer_.BeginPass(/*is_last=*/false);
    TAOPD_RETURN_IF_ERROR(optimizer_.EndPass());
  }
  return absl::OkStatus();
}

absl::StatusOr<RowSums> Step::ComputeGradients(int64_t mini_batch) {
  TAOPD_ASSIGN_OR_RETURN(dealt_, Deal(mini_batch));
  ForwardBackwardOptions options;
  options.veto_rho_below = context_.config->objective.veto_rho_below;
  options.times = &times_;
  options.forward.recompute = RecomputeOf(context_.config->trainer);
  // The teacher scores while the student computes what needs no scores.
  bool has_scores = !is_alone();
  options.before_scores = [&] {
    const absl::Status status = has_scores ? absl::OkStatus() : WaitForMyScores(mini_batch);
    has_scores = status.ok();
    return status;
  };
  // One rank adds row by row to what it has.
  RowSums sums = is_alone() ? record_.sums : RowSums();
  int64_t bad_sequence = -1, bad_row = -1, num_done = 0;
  int64_t num_passes = dealt_.num_micro_batches;  // of the rank with the most
  if (optimizer_.every_pass_sends()) {
    TAOPD_ASSIGN_OR_RETURN(num_passes, group_->AgreeOnLargest(num_passes));
  }
  for (const std::vector<SequenceRange>& micro_batches : dealt_.micro_batches) {
    for (const auto& [first, last] : micro_batches) {
      options.forward.on_layer_backward =
          optimizer_.BeginPass(++num_done == dealt_.num_micro_batches);
      TAOPD_RETURN_IF_ERROR(ForwardBackward(
          context_.student, head_, {dealt_.items.begin() + first, dealt_.items.begin() + last},
          {dealt_.row_weights.begin() + first, dealt_.row_weights.begin() + last}, &sums, options));
      TAOPD_RETURN_IF_ERROR(optimizer_.EndPass());
      if (bad_sequence < 0 && sums.bad_sequence >= 0) {
        bad_sequence = first + sums.bad_sequence;
        bad_row = sums.bad_row;
      }
    }
    optimizer_.AddShare();
  }
  {
    std::optional<PhaseTimer> timer;
    if (!is_alone()) timer.emplace(&times_, Phase::kOptimizer);
    if (optimizer_.every_pass_sends()) TAOPD_RETURN_IF_ERROR(JoinOtherPasses(num_done, num_passes));
    TAOPD_RETURN_IF_ERROR(optimizer_.ReduceGradients());
  }
  if (!is_alone()) {
    TAOPD_RETURN_IF_ERROR(SumOverRanks(group_, &sums));
    AddSums(record_.sums, &sums);
  }
  sums.bad_sequence = bad_sequence;
  sums.bad_row = bad_row;
  return sums;
}

// The sums so far are finite, so `sums` is finite if and only if this mini-batch's loss is.
absl::Status Step::UpdateOrSkip(const RowSums& sums, int64_t mini_batch) {
  batch_->WaitAllGenerated();
  const PhaseTimer timer(&times_, Phase::kOptimizer);
  TAOPD_ASSIGN_OR_RETURN(const double grad_norm, optimizer_.GradientNorm());
  if (!std::isfinite(grad_norm) || !std::isfinite(sums.weighted_loss)) {
    TAOPD_RETURN_IF_ERROR(ReportBadBatch(sums, grad_norm, mini_batch));
    optimizer_.Skip();
    ++record_.num_skipped_updates;
    return absl::OkStatus();
  }
  TAOPD_RETURN_IF_ERROR(optimizer_.Update(record_.lr, grad_norm));
  record_.sums = sums;
  record_.grad_norm_sum += grad_norm;
  ++record_.num_updates;
  return absl::OkStatus();
}

// One rank reports: the first that has a bad row, or rank 0.
absl::Status Step::ReportBadBatch(const RowSums& sums, double grad_norm, int64_t mini_batch) {
  const at::Tensor reporter = at::zeros({1}, at::kLong);
  if (sums.bad_sequence >= 0) reporter[0] = group_->world_size() - group_->rank();
  TAOPD_RETURN_IF_ERROR(group_->AllReduce(reporter, Reduction::kMax));
  const auto found = reporter.item<int64_t>();
  if (group_->rank() != (found > 0 ? group_->world_size() - found : 0)) return absl::OkStatus();
  BadBatch bad;
  bad.step = number_ + 1;
  bad.mini_batch = mini_batch;
  bad.loss = sums.weighted_loss - record_.sums.weighted_loss;
  bad.grad_norm = grad_norm;
  bad.sequences = dealt_.items;
  bad.bad_sequence = sums.bad_sequence;
  bad.bad_row = sums.bad_row;
  int64_t rollout = -1;  // of the step
  if (bad.bad_sequence >= 0) {
    const int64_t sequence = dealt_.sequences[bad.bad_sequence];
    bad.prompt_id = PromptOf(mini_batch, sequence)->id;
    rollout = mini_batch * sequences_per_mini_ + sequence;
  }
  LogWarning("update skipped: the loss or its gradient is not finite",
             {{"step", bad.step},
              {"mini_batch", bad.mini_batch},
              {"loss", bad.loss},
              {"grad_norm", grad_norm},
              {"rollout", rollout},
              {"row", bad.bad_row},
              {"prompt", bad.prompt_id}});
  context_.on_bad_batch(bad);
  return absl::OkStatus();
}

absl::StatusOr<StepResult> Step::Finish() {
  batch_->WaitIdle();
  StepResult result;
  for (int64_t i = 0; i < batch_->size(); ++i) {
    record_.num_beyond_vocabulary += batch_->item(i).scores.num_beyond_vocabulary;
    result.rollouts.push_back(batch_->item(i).rollout);
  }
  result.prompts = prompts_;
  record_.rollouts = SumRollouts(result.rollouts);
  const at::Tensor longest = at::full({1}, record_.rollouts.longest, at::kLong);
  TAOPD_RETURN_IF_ERROR(group_->AllReduce(longest, Reduction::kMax));
  record_.rollouts.longest = longest.item<int64_t>();
  RankSums all;
  all.Add(&record_.num_beyond_vocabulary);
  all.Add(&record_.rollouts.num_rollouts);
  all.Add(&record_.rollouts.num_response_tokens);
  all.Add(&record_.rollouts.num_tokens);
  all.Add(&record_.rollouts.num_truncated);
  all.Add(&record_.rollouts.repeated_ngrams);
  all.Add(&record_.full_kl.full_kl);
  all.Add(&record_.full_kl.ta_opd);
  all.Add(&record_.full_kl.num_rows);
  TAOPD_RETURN_IF_ERROR(all.Reduce(group_));
  record_.duration = context_.clock->Now() - start_;
  result.metrics = MakeStepMetrics(record_, times_, support_, head_);
  result.num_skipped_updates = record_.num_skipped_updates;
  return result;
}

// A failure leaves no gradients behind.
absl::Status Abandon(const StepContext& context, absl::Status status) {
  context.optimizer->ClearGradients();
  return status;
}

}  // namespace

absl::StatusOr<StepResult> TrainOneStep(const StepContext& context, int64_t step_number, double lr,
                                        const std::vector<const PromptRecord*>& prompts) {
  // 1. Roll out with the current weights. Each finished rollout goes to the teacher at once.
  Step step(context, step_number, lr, prompts);

  for (int64_t mini_batch = 0; mini_batch < step.num_mini_batches(); ++mini_batch) {
    // 2. Wait for this mini-batch's rollouts. Those of the others go on, and so do the scores.
    if (absl::Status generated = step.WaitForRollouts(mini_batch); !generated.ok()) {
      return Abandon(context, generated);
    }

    // 3. Loss and gradients, in micro-batches of bounded size, as soon as the scores are there.
    const absl::StatusOr<RowSums> sums = step.ComputeGradients(mini_batch);
    if (!sums.ok()) return Abandon(context, sums.status());

    // 4. Update, once no rollout reads the weights any more and no score is missing, or skip numbers
    // that are not finite.
    absl::Status done = step.WaitForAllScores();
    if (done.ok()) done = step.UpdateOrSkip(*sums, mini_batch);
    if (!done.ok()) return Abandon(context, done);
  }

  // 5. What happened.
  return step.Finish();
}

}  // namespace taopd
