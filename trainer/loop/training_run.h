// The distillation run of the subcommand train: its set-up and the loop over its steps.
//
//   ../setup/training/   the parts of a run, and what makes them: all that can refuse a run before
//                        its first step
//   ../setup/plan/       the memory plan, and the settings that are auto
//   run_lifecycle.h      pauses, checkpoints, and the ends of a run
//   run_evaluations.h    evaluations, the best checkpoint, early stop
//   beside_evaluation.h  a rank's part of an evaluation, and the thread of one beside training
//   run_pipeline.h       rollouts ahead of the steps
//   run_guard.h          the collapse guard and roll-backs
//   step_report.h        the metrics of a step
//   ../setup/ranks.h     several ranks
//
// With several ranks each runs the same loop on its share of the sequences. Only rank 0 decides
// (requests, evaluations, metrics) and writes; its decisions go to all ranks.
//
// One thread runs it. RunControl carries the requests of other threads to the loop.
#pragma once

#include <vector>

#include "trainer/loop/run_evaluations.h"
#include "trainer/loop/run_guard.h"
#include "trainer/loop/run_lifecycle.h"
#include "trainer/loop/run_pipeline.h"
#include "trainer/loop/step_report.h"
#include "trainer/setup/training/training_parts.h"
#include "trainer/step/train_step.h"

namespace taopd {

class TrainingRun {
 public:
  // `run_control` and `group` must outlive the object.
  TrainingRun(TrainConfig config, RunControl* run_control, ProcessGroup* group);

  // Sets up and trains until the last step, a stop request or a failure. With mode.dry_run, one
  // batch goes through a step and changes nothing. Call it once.
  absl::Status Run(const StartMode& mode);

 private:
  // ---- Set-up: nothing of an old run changes before all of it has succeeded ----
  // Returns whether the run is finished, with its last evaluation and its model, and stays as it
  // is.
  absl::StatusOr<bool> SetUp(const StartMode& mode);
  absl::StatusOr<bool> IsFinished();
  void Announce();

  // With --dry-run: takes one batch through the first step of the run, with the same prompts,
  // seeds, rollouts and scores, the same forward and backward pass, and the same memory, and prints
  // what it measured. The learning rate is 0, and nothing is written, neither records nor a skipped
  // mini-batch.
  absl::Status DryRun();

  // ---- The loop ----
  absl::Status Loop();
  absl::Status Step();
  absl::StatusOr<StepResult> TrainOn(const std::vector<const PromptRecord*>& batch);
  // Brings the average of a self teacher up to date after step `step` (1-based).
  absl::Status AverageWeights(int64_t step);
  void CountStep(const StepResult& result);
  absl::Status StepFailed(const TrainState& before, const absl::Status& status);
  // One of several ranks cannot save after an exception, of which the others do not know yet.
  bool is_alone() const { return parts_.group->world_size() == 1; }
  // Restores the state and the position in the data from before a step.
  absl::Status UndoStep(const TrainState& before);

  TrainingParts parts_;
  RunLifecycle lifecycle_;
  RunEvaluations evaluations_;
  RunPipeline pipeline_;
  RunGuard guard_;
  StepReport report_;
};

}  // namespace taopd
