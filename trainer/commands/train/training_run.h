// The distillation run of the subcommand train:
//
//   training_setup.cc       everything before the first step
//   training_loop.cc        the steps, checkpoints, the end
//   training_report.cc      the metrics of a step
//   training_evaluation.cc  evaluations, the best checkpoint, early stop
//   training_guard.cc       collapse guard, roll-backs, files for inspection
//   ranks.h                 several ranks
//
// With several ranks each runs the same loop on its share of the sequences. Only rank 0 decides
// (requests, evaluations, metrics) and writes; its decisions go to all ranks.
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
#include "trainer/commands/train/rewards.h"
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
  absl::Status SkipUndonePrompts();
  absl::Status OnWait();
  TeacherHealth Health() const;

  // ---- The loop ----
  absl::Status Loop();
  absl::Status Step();
  absl::StatusOr<StepResult> TrainOn(const std::vector<const PromptRecord*>& batch);
  // Rank 0 waits while the run is paused; the others wait for rank 0 and save when it does. Returns
  // whether the run should stop before the next step.
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
  // Saves during the next step if trainer.async_save and the memory allow it, otherwise like Save.
  void SaveBeside();
  // Records a checkpoint that was written during a step, if there is one. If `waits` is true, waits
  // until it is written.
  void TakeSavedBeside(bool waits);
  // Returns whether the present step is saved. Waits for a checkpoint that is being written.
  bool IsSaved();
  void PrepareSave();
  void WriteTimeline();

  // ---- Evaluation ----
  bool evaluates() const {
    return config_.eval.measure != EvalMeasure::kNone && !problems_.empty();
  }
  // Whether the evaluation after the present step belongs to the run.
  bool evaluation_is_due() const;
  // Measures the student. Each rank measures a part, unless that would change the numbers; then
  // rank 0 measures all.
  absl::StatusOr<EvalResult> Measure();
  // Opens the journal of the present evaluation, with the results of a run that was stopped during
  // it.
  std::optional<EvalJournal> OpenJournal();
  std::string JournalDir() const;
  // Evaluates. If that fails, the present state is saved first.
  absl::Status Evaluate();
  void ObserveEvaluation(const Metrics& metrics);
  // Writes best.json and keeps the checkpoint that it names.
  void NameBest(int64_t step, double value);
  // Restores best_ and best.json from the records and the checkpoints of a resumed run: best.json
  // names the best evaluation whose checkpoint exists, or is removed.
  absl::Status RestoreBest();
  // Returns whether the last step is done, or early_stop_evaluations ends the run early.
  bool is_finished() const;

  // ---- Guard ----
  // Adds the metrics that the guard needs. ObserveGuard shows them to the guard and carries out its
  // action.
  void MeasureForGuard(const StepResult& result, Metrics* metrics);
  absl::Status ObserveGuard(const Metrics& metrics);
  absl::Status RollBack(const GuardAlarm& alarm);
  absl::Status RecordRollback(const Rollbacks& rollbacks,
                              const std::optional<RollbackIntent>& intent);
  void WriteEvent(nlohmann::ordered_json event);
  void PinCheckpoints();

  // ---- Ends ----
  // Makes later checkpoints lie between two mini-batches of the step or, if null, between steps.
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
  std::vector<DataShare> shares_;            // from data.train_weights
  Metrics data_metrics_;                     // how the rows of data.train were used
  std::unique_ptr<grading::Grader> grader_;  // null if eval.grader is a URL
  Timeline timeline_;
  int64_t num_traced_steps_ = 0;
  TeacherViewOptions teacher_views_;  // used if the teacher has prompts of its own
  StepContext context_;
  std::unique_ptr<InferenceEngine> engine_;
  std::optional<LocalRolloutEngine> rollout_engine_;
  TeacherInfo teacher_info_;
  std::optional<SelfTeacher> self_teacher_;  // set if the student is a teacher
  std::unique_ptr<TeacherClient> teacher_;
  StepRewardOptions step_rewards_;               // used if there are rewards
  std::unique_ptr<RewardSource> reward_source_;  // null if there are none
  std::string memory_plan_;                      // as a table, for a failure
  double peak_flops_ = 0;                        // of this rank's device; 0: not known
  int64_t num_graded_ = 0, num_found_ = 0;  // numbers of responses since the start of the process
  bool has_warned_of_answers_ = false;
  double plan_gb_ = 0;  // planned memory of the device in GiB; 0 without a plan

  CollapseGuard guard_;
  Rollbacks rollbacks_;
  std::vector<Rollout> probe_;  // responses for policy/kl_to_start; empty if it is off
  // Steps of checkpoints, or -1: the newest one, and the newest one whose weights have made a step
  // without an alarm.
  int64_t newest_checkpoint_ = -1;  // may still be being written
  int64_t checkpoint_before_ = -1;  // the newest one before the one that is being written
  int64_t last_good_checkpoint_ = -1;
  RolloutLog rollout_log_;
  BestEvaluation best_;
  int64_t named_best_step_ = -1;  // the step in best.json, whose checkpoint is kept
  WallTimeLimit wall_time_;
  SaveInterval save_interval_;                  // used on rank 0
  absl::Duration save_time_, evaluation_time_;  // since the last line of metrics
  bool is_untouched_ = false;
  bool has_saved_ = false;        // whether the present step is saved or being saved
  int64_t copy_limit_bytes_ = 0;  // limit of a checkpoint's copy from the memory plan
  // The rest of the step after state_.step that a stopped run has left; null if there is none.
  std::shared_ptr<const PendingStep> pending_;

  // Null until the run has begun; read by the control server's threads.
  std::atomic<const RunOutput*> output_ = nullptr;
  std::unique_ptr<ControlServer> control_;
};

}  // namespace taopd
