// The evaluations of a distillation run, and their consequences: the best checkpoint and the
// early stop.
//
// With eval.mode beside, an evaluation measures a copy of the weights while training continues. At
// most one is open; the next one waits for it. Its weights are in the checkpoint of its step, which
// is kept until the evaluation is recorded, so that a resumed run can continue the evaluation with
// its journal. Training waits for the evaluations before the first and after the last step.
//
// Early stop with mode beside: whether a run ends after an evaluated step depends only on the
// evaluations of earlier steps, which are recorded by then, so it does not depend on the time that
// they take.
//
// All ranks call the same functions in the same order. Not thread-safe.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/eval/accuracy.h"
#include "trainer/guard/best_evaluation.h"
#include "trainer/loop/beside_evaluation.h"
#include "trainer/loop/run_lifecycle.h"

namespace taopd {

class RunEvaluations {
 public:
  // All must outlive the object.
  RunEvaluations(const RunContext& context, RunLifecycle* lifecycle)
      : context_(context), lifecycle_(*lifecycle) {}

  // Returns whether the run evaluates the weights after the current step.
  bool is_due() const;
  // Returns whether the last step is done, or early_stop_evaluations ends the run early.
  bool ends_run() const { return run_.is_last() || EndsEarly(); }
  // Evaluates, or begins to evaluate beside training. If that fails, saves the current state before
  // it returns the error.
  absl::Status Run();
  // Calls Run if the evaluation of the current step is due and not recorded: at the start of a new
  // run, and after a resume or a roll-back that interrupted an evaluation. Skips it if the weights
  // are already within the next step.
  absl::Status RunIfMissing();
  // Records an evaluation beside training that has ended, if there is one.
  absl::Status RecordIfReady();
  // Waits for an evaluation beside training, if there is one, and records it.
  absl::Status Finish();
  // Ends an evaluation beside training without a result. Restore starts it again if the state
  // names it.
  void Abandon() { beside_.reset(); }
  // Reads the evaluations from the records of a resumed run.
  void Observe(const RecordedMetrics& records);
  // Restores the best evaluation and best.json from the records and the checkpoints of a resumed
  // run: best.json names the best evaluation whose checkpoint exists. It is removed if none is
  // better than the evaluation of the start. Starts an evaluation beside training again if it is
  // not recorded.
  absl::Status Restore();
  // Returns the time that training waited for evaluations since the last call.
  absl::Duration TakeWaitTime() { return std::exchange(wait_time_, absl::ZeroDuration()); }

 private:
  bool is_beside() const { return config_.eval.mode == EvalMode::kBeside; }
  absl::Status RunBlocking();
  // Begins to evaluate the current weights beside training.
  void Begin();
  // Starts the evaluation that the state names again.
  absl::Status ResumeInterrupted();
  // Records the evaluation beside training, which is ready on all ranks.
  absl::Status RecordReady();
  absl::StatusOr<EvalResult> Measure();
  // Returns an error if the evaluation should end; `num_added` results were added to the journal.
  absl::Status OnWait(int64_t num_added);
  // Opens the journal of an evaluation, with the results of a run that was stopped during it. The
  // run had trained for train_seconds then.
  std::optional<EvalJournal> OpenJournal(int64_t step, double train_seconds);
  std::string JournalDir() const { return run_.run_dir() + "/evaluation_journal"; }
  // Records the result of the evaluation after `step` steps.
  absl::Status Record(int64_t step, const EvalResult& result);
  absl::Status Failed(int64_t step, const absl::Status& status);
  void ObserveMetrics(int64_t step, const Metrics& metrics);
  // Returns whether the run ends before its last step.
  bool EndsEarly() const;
  void LogEarlyStop() const;
  // Writes best.json and keeps the checkpoint that it names.
  void WriteBest(int64_t step, double value);

  const RunContext context_;
  RunLifecycle& lifecycle_;
  const TrainConfig& config_ = context_.config;
  CheckpointedRun& run_ = context_.run;
  ProcessGroup& group_ = run_.group();
  const TrainingData& data_ = context_.data;
  RolloutParts& rollouts_ = context_.rollouts;
  TeacherParts& teacher_ = context_.teacher;
  const bool smallest_is_best_ = config_.trainer.best_is == BestIs::kSmallest;
  BestEvaluation best_{smallest_is_best_};
  std::vector<std::pair<int64_t, double>> values_;  // of best_metric, by step
  absl::Duration wait_time_;
  std::optional<BesideEvaluation> beside_;
};

}  // namespace taopd
