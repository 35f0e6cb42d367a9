#include "trainer/step/step_in_progress.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/log.h"
#include "taopd/base/round_up.h"
#include "trainer/dist/rank_metrics.h"
#include "trainer/step/full_kl.h"
#include "trainer/step/rollouts/rollout_requests.h"
#include "trainer/step/rollouts/step_rollouts.h"
#include "trainer/step/support.h"
#include "trainer/step/timing/model_flops.h"

namespace taopd {
namespace {

// The head measures the overlap of the two top-k on the teacher's support. The overlap in a union
// follows from its size.
bool HeadMeasuresOverlap(const TrainConfig& config, const SupportOptions& support) {
  return support.teacher_top_k > 0 &&
         (support.kind == SupportKind::kTeacher || support.kind == SupportKind::kFullVocabulary);
}

// Adds the sums of ForwardBackward over the ranks, and counts the ranks that have stopped before
// the end of their micro-batches.
absl::Status ReduceSums(ProcessGroup* group, RowSums* sums, int64_t* num_stopped) {
  RankSums all;
  ForEachSum([&all](auto* number) { all.Add(number); }, *sums);
  all.Add(num_stopped);
  return all.Reduce(group);
}

// Removes the given responses from *result, and adds the prompt of each remaining one.
void LeaveOutGiven(const std::vector<const PromptRecord*>& prompts, StepResult* result) {
  std::vector<Rollout> rollouts;
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (result->rollouts[i].is_given) continue;
    rollouts.push_back(std::move(result->rollouts[i]));
    result->prompts.push_back(prompts[i]);
  }
  result->rollouts = std::move(rollouts);
}

absl::Status Stopped() { return absl::CancelledError("asked to stop"); }

}  // namespace

StepInProgress::StepInProgress(const StepContext& context, int64_t step_number, double lr,
                               const std::vector<const PromptRecord*>& prompts,
                               const PendingStep* pending)
    : context_(context),
      step_number_(step_number),
      group_(context.group),
      sequences_per_mini_(context.config->trainer.mini_batch_size * context.config->rollout.n),
      own_sequences_(context.shares.OwnRange(sequences_per_mini_)),
      optimizer_(context.optimizer, group_, context.shares.num_per_rank()),
      start_(context.clock->Now()),
      times_(context.clock, context.timeline),
      support_(MakeSupportOptions(*context.config, context.student->config().vocab_size)),
      head_(context.head),
      all_prompts_(prompts) {
  head_.top_k_metrics = HeadMeasuresOverlap(*context.config, support_);
  prompts_ = PromptsOfSequences(context, prompts);
  if (pending != nullptr) {
    ContinueFrom(*pending);
  } else if (context.rollouts_ahead != nullptr) {
    batch_ = context.rollouts_ahead->Take(step_number);
  } else {
    PackWeights();
    batch_ = StartRollouts(context, step_number, prompts);
  }
  record_.lr = lr;
}

// The engine would pack before its first token; packing here makes the time visible as a phase.
void StepInProgress::PackWeights() {
  const PhaseTimer timer(&times_, Phase::kPack);
  const c10::InferenceMode inference;
  context_.student->PrepareInference();
}

void StepInProgress::ContinueFrom(const PendingStep& pending) {
  std::vector<ScoredRollout> items;
  for (const int64_t i : SequencesOfStep(*context_.config, context_.shares)) {
    items.push_back(*pending.rollouts.at(i));
    items.back().rollout.source = prompts_[items.size() - 1]->source;
  }
  const std::vector<bool> scored(items.size(), true);
  batch_ = ScoredBatch::Continue(std::move(items), scored, BatchScoring());
  record_ = pending.record;
  first_mini_batch_ = pending.mini_batch;
  longest_mini_batch_ = pending.longest_mini_batch;
}

absl::Status StepInProgress::WaitForAllScores() {
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

absl::Status StepInProgress::WaitForRollouts(int64_t mini_batch) {
  absl::Status mine = WaitForOwnRollouts(mini_batch);
  // Ranks exchange rollouts together with their scores. The teacher's prompts are known once the
  // scores have arrived.
  if (mine.ok() && (group_->world_size() > 1 || SkipsMissing()))
    mine = WaitForOwnScores(mini_batch);
  const PhaseTimer timer(&times_, Phase::kScoreWait);
  return group_->AgreeOnStatus(mine);
}

absl::Status StepInProgress::WaitForOwnRollouts(int64_t mini_batch) {
  const int64_t begin = begin_of(mini_batch), end = begin + own_sequences_.size();
  const PhaseTimer timer(&times_, Phase::kRollout);
  return batch_->WaitGenerated(begin, end, context_.on_wait);
}

absl::Status StepInProgress::WaitForOwnScores(int64_t mini_batch) {
  if (scored_mini_batch_ == mini_batch) return absl::OkStatus();
  const int64_t begin = begin_of(mini_batch), end = begin + own_sequences_.size();
  const PhaseTimer timer(&times_, Phase::kScoreWait);
  TAOPD_RETURN_IF_ERROR(batch_->WaitScored(begin, end, context_.on_wait));
  // Measure before the first update, on its mini-batch. Fetching the dense scores counts as a wait
  // for the teacher.
  const int64_t num_rows = context_.config->objective.full_kl_rows;
  if (mini_batch == 0 && num_rows > 0 && support_.kind != SupportKind::kFullVocabulary) {
    const int64_t world_size = group_->world_size();
    TAOPD_ASSIGN_OR_RETURN(record_.full_kl,
                           MeasureFullKl(context_, *batch_, support_, end,
                                         CeilDiv(num_rows, world_size), step_number_));
  }
  scored_mini_batch_ = mini_batch;
  return absl::OkStatus();
}

absl::StatusOr<RankMiniBatch> StepInProgress::Partition(int64_t mini_batch) {
  PartitionInput input;
  input.model = &context_.student->config();
  input.shares = context_.shares;
  input.aggregation = context_.aggregation;
  input.mask_truncated = context_.config->rollout.mask_truncated;
  input.skips_missing = SkipsMissing();
  input.micro_batch_tokens = context_.config->trainer.MicroBatchTokens();
  // A response's dense scores can be as large as a model.
  input.balances = support_.kind != SupportKind::kFullVocabulary;
  for (int64_t i = 0; i < sequences_per_mini_; ++i) {
    input.prompt_lengths.push_back(
        static_cast<int64_t>(PromptOf(mini_batch, i)->prompt_ids.size()));
  }
  input.item = [this, mini_batch](int64_t sequence) -> const ScoredRollout& {
    return batch_->item(begin_of(mini_batch) + sequence - own_sequences_.begin);
  };
  return PartitionMiniBatch(input, group_);
}

bool StepInProgress::ShouldStopBefore(int64_t mini_batch) {
  if (!context_.stop_requested()) return false;
  if (!weights_changed()) return true;
  const absl::Time now = context_.clock->Now();
  stop_seen_ = std::min(stop_seen_, now);
  const auto num_left = static_cast<double>(num_mini_batches() - mini_batch);
  const absl::Time end = std::max(now, mini_batch_start_ + num_left * longest_mini_batch_);
  return end > stop_seen_ + context_.stop_grace;
}

absl::StatusOr<RowSums> StepInProgress::ComputeGradients(int64_t mini_batch) {
  mini_batch_start_ = context_.clock->Now();
  TAOPD_ASSIGN_OR_RETURN(rank_batch_, Partition(mini_batch));
  // The largest number of passes of any rank.
  int64_t num_passes = rank_batch_.num_micro_batches;
  if (optimizer_.every_pass_sends()) {
    TAOPD_ASSIGN_OR_RETURN(num_passes, group_->AgreeOnLargest(num_passes));
  }
  Passes passes;
  // Only rank 0 continues the sums of the step so far, so that the reduction counts them once.
  if (group_->is_root()) passes.sums = record_.sums;
  for (const std::vector<SequenceRange>& micro_batches : rank_batch_.micro_batches) {
    for (const SequenceRange& micro_batch : micro_batches)
      TAOPD_RETURN_IF_ERROR(RunPass(mini_batch, micro_batch, &passes));
    optimizer_.AddShare();
  }
  TAOPD_RETURN_IF_ERROR(ReduceGradients(passes.num_done, num_passes));
  TAOPD_RETURN_IF_ERROR(ReduceSums(group_, &passes.sums, &passes.num_stopped));
  if (passes.num_stopped > 0) return Stopped();
  passes.sums.bad_sequence = passes.bad_sequence;
  passes.sums.bad_row = passes.bad_row;
  return passes.sums;
}

absl::Status StepInProgress::RunPass(int64_t mini_batch, SequenceRange micro_batch,
                                     Passes* passes) {
  // A rank that stops computes nothing more, but still sends what the other ranks wait for.
  if (passes->num_stopped == 0 && ShouldStopBefore(mini_batch)) passes->num_stopped = 1;
  ForwardBackwardOptions options;
  options.veto_rho_below = context_.config->objective.veto_rho_below;
  options.times = &times_;
  options.forward.recompute = RecomputeOf(context_.config->trainer);
  // The teacher scores while the student computes what needs no scores.
  options.before_scores = [&] { return WaitForOwnScores(mini_batch); };
  options.forward.on_layer_backward =
      optimizer_.BeginPass(++passes->num_done == rank_batch_.num_micro_batches);
  const auto& [first, last] = micro_batch;
  if (passes->num_stopped == 0) {
    TAOPD_RETURN_IF_ERROR(ForwardBackward(
        context_.student, head_,
        {rank_batch_.items.begin() + first, rank_batch_.items.begin() + last},
        {rank_batch_.row_weights.begin() + first, rank_batch_.row_weights.begin() + last},
        &passes->sums, options));
  }
  TAOPD_RETURN_IF_ERROR(optimizer_.EndPass());
  if (passes->bad_sequence < 0 && passes->sums.bad_sequence >= 0) {
    passes->bad_sequence = first + passes->sums.bad_sequence;
    passes->bad_row = passes->sums.bad_row;
  }
  return absl::OkStatus();
}

absl::Status StepInProgress::ReduceGradients(int64_t num_done, int64_t num_passes) {
  const PhaseTimer timer(&times_, Phase::kOptimizer);
  // Ranks that have more micro-batches than this one wait for its part in their passes.
  for (; optimizer_.every_pass_sends() && num_done < num_passes; ++num_done) {
    optimizer_.BeginPass(/*is_last=*/false);
    TAOPD_RETURN_IF_ERROR(optimizer_.EndPass());
  }
  return optimizer_.ReduceGradients();
}

// The sums so far are finite, so `sums` is finite if and only if this mini-batch's loss is.
absl::Status StepInProgress::UpdateOrSkip(const RowSums& sums, int64_t mini_batch) {
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
  longest_mini_batch_ = std::max(longest_mini_batch_, context_.clock->Now() - mini_batch_start_);
  record_.sums = sums;
  record_.grad_norm_sum += grad_norm;
  ++record_.num_updates;
  return absl::OkStatus();
}

// Only one rank reports: the first one with a bad row, or rank 0.
absl::Status StepInProgress::ReportBadBatch(const RowSums& sums, double grad_norm,
                                            int64_t mini_batch) {
  const at::Tensor reporter = at::zeros({1}, at::kLong);
  if (sums.bad_sequence >= 0) reporter[0] = group_->world_size() - group_->rank();
  TAOPD_RETURN_IF_ERROR(group_->AllReduce(reporter, Reduction::kMax));
  const auto found = reporter.item<int64_t>();
  if (group_->rank() != (found > 0 ? group_->world_size() - found : 0)) return absl::OkStatus();
  BadBatch bad;
  bad.step = step_number_ + 1;
  bad.mini_batch = mini_batch;
  bad.loss = sums.weighted_loss - record_.sums.weighted_loss;
  bad.grad_norm = grad_norm;
  bad.sequences = rank_batch_.items;
  bad.bad_sequence = sums.bad_sequence;
  bad.bad_row = sums.bad_row;
  int64_t rollout = -1;  // index within the step
  if (bad.bad_sequence >= 0) {
    const int64_t sequence = rank_batch_.sequences[bad.bad_sequence];
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

absl::Status StepInProgress::StartLaterRollouts() {
  if (context_.rollouts_ahead == nullptr) return absl::OkStatus();
  return context_.rollouts_ahead->StepDone(step_number_ + 1, &times_);
}

absl::StatusOr<StepResult> StepInProgress::Finish() {
  batch_->WaitIdle();
  StepResult result;
  const std::vector<const ScoredRollout*> items = batch_->Items(0, batch_->size());
  for (const ScoredRollout* item : items) result.rollouts.push_back(item->rollout);
  result.model_flops = ModelFlops(context_.student->config(), result.rollouts);
  LeaveOutGiven(prompts_, &result);
  record_.rollouts = SumRollouts(items, step_number_);
  if (context_.rewards != nullptr) {
    record_.rewards = SumRewards(items, context_.config->rollout.n);
    record_.rewards.num_retries = context_.rewards->source->stats().retries;
  }
  const at::Tensor longest = at::full({1}, record_.rollouts.longest, at::kLong);
  TAOPD_RETURN_IF_ERROR(group_->AllReduce(longest, Reduction::kMax));
  record_.rollouts.longest = longest.item<int64_t>();
  RankSums all;
  const auto add = [&all](auto* number) { all.Add(number); };
  ForEachSum(add, record_.rollouts);
  ForEachSum(add, record_.rewards);
  ForEachSum(add, record_.full_kl);
  TAOPD_RETURN_IF_ERROR(all.Reduce(group_));
  record_.duration += context_.clock->Now() - start_;
  result.metrics = MakeStepMetrics(record_, times_, support_, head_);
  const Metrics optional = MakeOptionalMetrics(record_, *context_.config);
  result.metrics.insert(result.metrics.end(), optional.begin(), optional.end());
  result.num_skipped_updates = record_.num_skipped_updates;
  return result;
}

absl::Status StepInProgress::Abandon(absl::Status status) {
  // Rollouts that are generated ahead and still unfinished come from the current weights, which can
  // generate them again.
  context_.rollout_engine->CancelAll();
  context_.optimizer->ClearGradients();
  return status;
}

absl::StatusOr<StepResult> StepInProgress::StopBefore(int64_t mini_batch) {
  context_.optimizer->ClearGradients();
  auto pending = std::make_shared<PendingStep>();
  pending->mini_batch = mini_batch;
  pending->num_mini_batches = num_mini_batches();
  pending->num_sequences = num_mini_batches() * sequences_per_mini_;
  pending->record = record_;
  pending->record.duration += context_.clock->Now() - start_;
  pending->longest_mini_batch = longest_mini_batch_;
  RankSums all;
  ForEachSum([&all](auto* number) { all.Add(number); }, pending->record.full_kl);
  TAOPD_RETURN_IF_ERROR(all.Reduce(group_));
  const std::vector<int64_t> mine = SequencesOfStep(*context_.config, context_.shares);
  for (size_t i = 0; i < mine.size(); ++i) {
    pending->rollouts[mine[i]] = {batch_, &batch_->item(static_cast<int64_t>(i))};
  }
  StepResult result;
  result.pending = std::move(pending);
  return result;
}

}  // namespace taopd
