// A training step in progress: its phases, which TrainOneStep runs one after the other, and their
// shared state. Mini-batches are numbered from 0. Each has the same number of sequences on this
// rank, which are consecutive in the ScoredBatch.
//
// Owns nothing that outlives it. Not thread-safe. All ranks must call the same functions in the
// same order.
#pragma once

#include <memory>
#include <vector>

#include "trainer/dist/sharded_optimizer.h"
#include "trainer/step/balance/partition.h"
#include "trainer/step/loss/forward_backward.h"
#include "trainer/step/rollouts/pending_step.h"
#include "trainer/step/scored_batch.h"
#include "trainer/step/step_context.h"
#include "trainer/step/step_metrics.h"
#include "trainer/step/train_step.h"

namespace taopd {

class StepInProgress {
 public:
  // Starts the rollouts, takes those that are generated ahead, or continues `pending` if it is not
  // null.
  StepInProgress(const StepContext& context, int64_t step_number, double lr,
                 const std::vector<const PromptRecord*>& prompts, const PendingStep* pending);
  // The engine reads the student's weights until the last rollout has ended.
  ~StepInProgress() { batch_->WaitAllGenerated(); }
  StepInProgress(const StepInProgress&) = delete;
  StepInProgress& operator=(const StepInProgress&) = delete;

  int64_t num_mini_batches() const {
    return context_.config->data.train_batch_size / context_.config->trainer.mini_batch_size;
  }
  // Returns the first mini-batch that is left of the step.
  int64_t first_mini_batch() const { return first_mini_batch_; }
  bool weights_changed() const { return record_.num_updates > 0; }

  // Waits for the rollouts. With several ranks, or if responses without a sibling are skipped, also
  // waits for the scores; otherwise ComputeGradients does, after its forward pass. Returns the same
  // error on all ranks.
  absl::Status WaitForRollouts(int64_t mini_batch);
  // Before the first update, waits for the teacher's scores of all mini-batches, so that after it
  // only a lack of memory or a lost rank can make the step fail.
  absl::Status WaitForAllScores();
  // Returns the step's sums over all ranks, including this mini-batch. Returns CANCELLED on all
  // ranks if the step should stop before the update.
  absl::StatusOr<RowSums> ComputeGradients(int64_t mini_batch);
  // Waits until no rollout reads the weights any more, and updates them with these gradients. If
  // the loss or the gradient is not finite, reports the mini-batch and leaves it out instead.
  absl::Status UpdateOrSkip(const RowSums& sums, int64_t mini_batch);
  // Starts the rollouts that the weights after this step generate for later steps. Does nothing if
  // rollouts are not generated ahead.
  absl::Status StartLaterRollouts();
  // Returns the result of a step that has no mini-batch left.
  absl::StatusOr<StepResult> Finish();
  // Ends the step and clears the gradients. Before the first update, nothing has changed.
  absl::Status Abandon(absl::Status status);
  // Ends the step before this mini-batch. All ranks must call it.
  absl::StatusOr<StepResult> StopBefore(int64_t mini_batch);

 private:
  // The passes of this rank over a mini-batch so far.
  struct Passes {
    RowSums sums;
    int64_t num_done = 0;
    int64_t num_stopped = 0;  // 1 if the rank has stopped computing before one of them
    // The first bad row of the mini-batch; -1 if there is none.
    int64_t bad_sequence = -1;  // in rank_batch_.items
    int64_t bad_row = -1;
  };

  void ContinueFrom(const PendingStep& pending);
  void PackWeights();
  absl::Status WaitForOwnRollouts(int64_t mini_batch);
  absl::Status WaitForOwnScores(int64_t mini_batch);
  // Whether the loss leaves out responses without a sibling.
  bool SkipsMissing() const {
    return context_.teacher_views != nullptr && context_.teacher_views->skips_missing &&
           context_.config->data.HasSibling();
  }
  // Returns this rank's part of the mini-batch for training.
  absl::StatusOr<RankMiniBatch> Partition(int64_t mini_batch);
  // Returns whether the run should stop and the rest of the step, from this mini-batch on, would
  // take too long.
  bool ShouldStopBefore(int64_t mini_batch);
  // Runs the forward and the backward pass over a micro-batch, a range of rank_batch_.items.
  absl::Status RunPass(int64_t mini_batch, SequenceRange micro_batch, Passes* passes);
  // Sums the gradients over the ranks. This rank has made `num_done` passes, and the rank with the
  // most has made `num_passes`.
  absl::Status ReduceGradients(int64_t num_done, int64_t num_passes);
  absl::Status ReportBadBatch(const RowSums& sums, double grad_norm, int64_t mini_batch);
  // Returns the prompt of sequence `sequence` of the mini-batch.
  const PromptRecord* PromptOf(int64_t mini_batch, int64_t sequence) const {
    const int64_t i = mini_batch * sequences_per_mini_ + sequence;
    return all_prompts_[i / context_.config->rollout.n];
  }
  int64_t begin_of(int64_t mini_batch) const { return mini_batch * own_sequences_.size(); }

  const StepContext& context_;
  const int64_t step_number_;  // 0-based
  ProcessGroup* const group_;
  const int64_t sequences_per_mini_;   // on all ranks
  const SequenceRange own_sequences_;  // this rank's part of a mini-batch
  ShardedOptimizer optimizer_;
  const absl::Time start_;
  PhaseTimes times_;
  const SupportOptions support_;
  HeadOptions head_;
  const std::vector<const PromptRecord*> all_prompts_;  // prompts of the step, on all ranks
  std::vector<const PromptRecord*> prompts_;            // one per sequence of the batch
  std::shared_ptr<ScoredBatch> batch_;
  int64_t first_mini_batch_ = 0;
  int64_t scored_mini_batch_ = -1;  // the last one whose scores have arrived
  RankMiniBatch rank_batch_;        // the current mini-batch
  StepRecord record_;               // its duration is that of earlier processes
  absl::Time mini_batch_start_;
  absl::Duration longest_mini_batch_;
  absl::Time stop_seen_ = absl::InfiniteFuture();
};

}  // namespace taopd
