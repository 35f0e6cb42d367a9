// The distillation run of the subcommand train:
//
//   training_setup.cc       what comes before the first step
//   training_loop.cc        the steps, checkpoints, the end
//   training_report.cc      the metrics of a step
//   training_evaluation.cc  evaluations, the best checkpoint, early stop
//   training_guard.cc       collapse guard, roll-backs, what is written aside
//   ranks.h                 several ranks
//
// With several ranks each runs the same loop on its share of the sequences. What one of them
// decides or sees alone (requests, evaluations, metrics) is rank 0's and goes to all; rank 0 alone
// writes.
//
// One thread runs it. RunState carries the requests of other threads to the loop.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/commands/commands.h"
#include "trainer/commands/configured_parts.h"
#include "trainer/commands/train/ranks.h"
#include "trainer/commands/train/rollout_log.h"
#include "trainer/control/control_server.h"
#include "trainer/data/epoch_order.h"
#include "trainer/guard/best_evaluation.h"
#include "trainer/guard/collapse_guard.h"
#include "trainer/guard/rollbacks.h"
#include "trainer/guard/save_interval.h"
#include "trainer/guard/wall_time.h"
#include "trainer/run/checkpointed_run.h"
#include "trainer/step/timing/timeline.h"
#include "trainer/step/train_step.h"

namespace taopd {

class TrainingRun {
 public:
  // `state` and `group` must outlive the object.
  TrainingRun(TrainConfig config, RunState* state, ProcessGroup* group);

  // Sets up and trains until the last step, a stop request or a failure. Call it once.
  absl::Status Run(const StartMode& mode);

 private:
  // ---- Set-up: nothing of an old run changes before all of it has succeeded ----
  absl::Status SetUp(const StartMode& mode);
  // Sets is_untouched_ if the resumed run is finished, with its last evaluation and its model.
  absl::Status FindFinished();
  absl::Status CheckConfig();
  absl::Status Connect();
  absl::Status CheckNames();
  absl::Status PlanMemory();
  absl::Status AgreeOnPlan();
  absl::Status LoadData();
  absl::Status CheckBestMetric() const;
  absl::Status ConnectTeacher();
  absl::Status StartEngine();
  absl::Status StartControl();
  // What a resumed run must have in common with the run of its checkpoint, beside the settings.
  absl::StatusOr<RunFacts> FactsOfRun() const;
  // What a resumed run remembers beside its state: the guard and the roll-backs.
  absl::Status RestoreWatch();
  absl::Status OnWait();
  TeacherHealth Health() const;

  // ---- The loop ----
  absl::Status Loop();
  absl::Status Step();
  absl::StatusOr<StepResult> TrainOn(const std::vector<const PromptRecord*>& batch);
  // Rank 0 waits while the run is paused; the others wait for rank 0 and save when it does. Returns
  // whether the run is to stop before the next step.
  absl::StatusOr<bool> WaitForNextStep();
  // `graded` and `found` are of this step and all ranks.
  void WatchAnswers(int64_t graded, int64_t found, const std::string& response,
                    const std::string& expected);
  // Adds metrics, and makes them those of rank 0 on all ranks.
  absl::Status Report(const StepResult& result, Metrics* metrics);
  bool is_root() const { return group_->is_root(); }
  // A failure is logged, and the next step tries again.
  absl::Status Save();
  // Saves the present state before the run ends, however long that takes (until_stored.h).
  absl::Status SaveOrWait();
  void NotSaved(const absl::Status& status);
  // Beside the next step, if trainer.async_save and the memory allow it; else as Save.
  void SaveBeside();
  // Takes note of a checkpoint that was written beside a step, if there is one. `waits`: until it
  // is written.
  void TakeSavedBeside(bool waits);
  // Whether the present step is saved. Waits for a checkpoint that is being written.
  bool IsSaved();
  void PrepareSave();
  void WriteTimeline();

  // ---- Evaluation ----
  bool evaluates() const {
    return config_.eval.measure != EvalMeasure::kNone && !problems_.empty();
  }
  // Whether the evaluation after the present step belongs to the run.
  bool evaluation_is_due() const;
  // Measures the student: all ranks a part each, or rank 0 where parts would change the numbers.
  absl::StatusOr<EvalResult> Measure();
  // The journal of the present evaluation, with what a run that was stopped in it has measured.
  std::optional<EvalJournal> OpenJournal();
  std::string JournalDir() const;
  // Evaluates. If that fails, the present state is saved first.
  absl::Status Evaluate();
  void ObserveEvaluation(const Metrics& metrics);
  // Writes best.json and keeps the checkpoint that it names.
  void NameBest(int64_t step, double value);
  // Makes best_ and best.json what the records and the checkpoints of a run say that goes on from a
  // checkpoint: best.json names the best evaluation whose checkpoint is there, or is removed.
  absl::Status RestoreBest();
  // Whether the last step is done, or early_stop_evaluations ends the run before.
  bool is_finished() const;

  // ---- Guard ----
  // Adds the metrics that the guard needs, lets it look at them, and does what it asks for.
  void MeasureForGuard(const StepResult& result, Metrics* metrics);
  absl::Status ObserveGuard(const Metrics& metrics);
  absl::Status RollBack(const GuardAlarm& alarm);
  absl::Status RecordRollback(const Rollbacks& rollbacks,
                              const std::optional<RollbackIntent>& intent);
  void WriteEvent(nlohmann::ordered_json event);
  void PinCheckpoints();

  // ---- Ends ----
  // From now on checkpoints are between two mini-batches of the step; null: between two steps.
  void SetPending(std::shared_ptr<const PendingStep> pending);
  // Back to where the step began.
  absl::Status UndoStep(const TrainState& before);
  absl::Status StepFailed(const TrainState& before, const absl::Status& status);
  // Memory ran out `where`. Saves `before` if no update has followed it.
  absl::Status OutOfMemory(const TrainState& before, int64_t updates_before,
                           const std::string& where, const std::string& what);
  absl::Status Stopped();
  // The failure, after the present step is saved, if it can be.
  absl::Status FailSaved(const absl::Status& failure);

  const absl::Time start_ = absl::Now();
  // Destroyed in reverse: the control server first, then the client, whose callbacks use the
  // timeline, the engine, the student.
  TrainConfig config_;
  RunState* const run_state_;
  ProcessGroup* const group_;
  CheckpointedRun run_;
  Student& student_ = run_.student();
  TrainState& state_ = run_.state();
  std::vector<PromptRecord> prompts_;
  std::vector<PromptRecord> problems_;
  std::optional<EpochOrder> order_;
  std::vector<DataShare> shares_;  // of data.train_weights
  Metrics data_metrics_;           // what became of the rows of data.train
  std::unique_ptr<grading::Grader> grader_;
  Timeline timeline_;
  int64_t num_traced_steps_ = 0;
  StepContext context_;
  std::unique_ptr<InferenceEngine> engine_;
  std::optional<LocalRolloutEngine> rollout_engine_;
  TeacherInfo teacher_info_;
  std::unique_ptr<TeacherClient> teacher_;
  std::string memory_plan_;                 // as a table, for a failure
  double peak_flops_ = 0;                   // of this rank's device; 0: not known
  int64_t num_graded_ = 0, num_found_ = 0;  // responses, since the start of the process
  bool has_warned_of_answers_ = false;
  double plan_gb_ = 0;  // of the device, in GiB; 0: there is no plan

  CollapseGuard guard_;
  Rollbacks rollbacks_;
  std::vector<Rollout> probe_;  // of policy/kl_to_start; empty if it is off
  // Steps of checkpoints, or -1: the newest one, and the newest one whose weights have made a step
  // without an alarm.
  int64_t newest_checkpoint_ = -1;  // or being written
  int64_t checkpoint_before_ = -1;  // the newest one before that which is being written
  int64_t last_good_checkpoint_ = -1;
  RolloutLog rollout_log_;
  BestEvaluation best_;
  int64_t named_best_step_ = -1;  // by best.json; its checkpoint stays
  WallTimeLimit wall_time_;
  SaveInterval save_interval_;                  // counts on rank 0
  absl::Duration save_time_, evaluation_time_;  // since the last line of metrics
  bool is_untouched_ = false;
  bool has_saved_ = false;        // the present step, or it is being saved
  int64_t copy_limit_bytes_ = 0;  // of a checkpoint's copy, by the memory plan
  // What a stopped run has left of the step after state_.step; null: nothing.
  std::shared_ptr<const PendingStep> pending_;

  // Null until the run has begun; read by the control server's threads.
  std::atomic<const RunOutput*> output_ = nullptr;
  std::unique_ptr<ControlServer> control_;
};

}  // namespace taopd
