// The life of a run around its steps, which `train` and `sft` share. The class shows the run to
// other threads, carries out their requests between two steps, saves checkpoints, and ends
// the run after it is saved.
//
// A run whose state must be written, at its end or for a roll-back, does not end because the disk
// is full: the weights stay in memory and the write is repeated until it succeeds.
//
// All ranks call the same functions in the same order. Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "common/base/service/service_manager.h"
#include "common/metrics/step_time.h"
#include "trainer/config/train_config.h"
#include "trainer/control/run_control.h"
#include "trainer/guard/wall_time.h"
#include "trainer/loop/kept_checkpoints.h"
#include "trainer/run/checkpointed_run.h"
#include "trainer/setup/plan/memory_plan.h"
#include "trainer/step/rollouts/pending_step.h"
#include "trainer/step/timing/timeline.h"

namespace taopd {

struct RunLifecycleOptions {
  absl::Time start;                           // of the process
  absl::Duration save_interval;               // trainer.save_minutes; zero: none
  absl::Duration wall_time_limit;             // trainer.max_wall_time_s; zero: none
  const PlannedMemory* memory = nullptr;      // null: there is no plan, and saves do not copy
  RunTrace* trace = nullptr;                  // may be null
  ServiceManager* service_manager = nullptr;  // may be null
};

class RunLifecycle {
 public:
  // The arguments, and all that the options point to, must outlive the object.
  RunLifecycle(CheckpointedRun* run, RunControl* run_control, const RunLifecycleOptions& options)
      : run_(*run), run_control_(*run_control), options_(options) {}

  // Calls `prepare` before each save: it gives the checkpoint its further files. An error means
  // that there can be no checkpoint.
  void OnPrepare(std::function<absl::Status()> prepare) { prepare_ = std::move(prepare); }
  // Restores the rest of a step from the checkpoint that the state was loaded from, if it has one.
  absl::Status Restore(const TrainConfig& config, const Shares& shares);

  // Shows other threads that the run begins, or continues from a checkpoint.
  void ShowBegin();
  // Shows them the current step with its metrics, and the time until the last step: the mean time
  // of the steps so far, times the number of steps left. The console shows the same
  // (console_sink.h). REQUIRES: the metrics have time/step_s.
  void ShowStep(const Metrics& metrics);

  // Waits while the run is paused: rank 0 for a person, and the others for rank 0. Carries out
  // saves that are requested meanwhile. Returns whether the run should stop before the next step,
  // because a rank was asked to stop or the wall time has no room for one more step.
  absl::StatusOr<bool> WaitForNextStep();

  // Call it after each step. Saves if a checkpoint is requested, or due by `save_every` steps or by
  // the save interval. Always saves the state after the last step.
  absl::Status SaveIfDue(int64_t save_every);
  // Saves the current state. A failure is logged, and the next step tries again.
  absl::Status Save();
  // Makes sure that the current state is saved before the run ends. Waits for a save in progress,
  // and then saves by RetryUntilStored unless a checkpoint already has the state.
  absl::Status SaveUntilStored();
  // Saves during the next step if trainer.async_save and the memory allow it, otherwise like Save.
  void StartSave();
  // Records a checkpoint that was written during a step, if there is one. If `waits` is true, waits
  // until it is written.
  void RecordFinishedSave(bool waits);
  // Waits for a checkpoint that is being written. Returns whether the current step is saved.
  bool WaitUntilSaved();
  bool is_saved_or_saving() const { return is_saved_or_saving_; }
  // MarkChanged records that the state differs from the last checkpoint. MarkSaved records that a
  // checkpoint has the state.
  void MarkChanged() { is_saved_or_saving_ = false; }
  void MarkSaved() { is_saved_or_saving_ = true; }
  // Returns the time that saves took since the last call.
  absl::Duration TakeSaveTime() { return std::exchange(save_time_, absl::ZeroDuration()); }
  // The limit of the process's time. Each save tells it how long it took.
  WallTimeLimit& wall_time() { return wall_time_; }

  // The checkpoints that the run keeps. Each save adds its own, and pins them first.
  KeptCheckpoints& kept() { return kept_; }

  // Gives later checkpoints the rest of a step that has ended between two mini-batches; the current
  // state then counts as not saved. If `pending` is null, they lie between two steps again.
  void SetPending(std::shared_ptr<const PendingStep> pending);
  // The rest of the step after state.step that a stopped run has left; null if there is none.
  const PendingStep* pending() const { return pending_.get(); }

  // Calls `attempt`, a collective with the same result on all ranks, until it succeeds. After a
  // failure the phase is kWaitingForStorage, the log says what to do, and the next attempt follows
  // about a second later. Returns kExitStorage if a stop is requested on any rank while it waits;
  // the message names `what`, such as "the checkpoint of step 20", and the newest saved step.
  // Returns kExitInternal if the CUDA device of a rank is lost.
  absl::Status RetryUntilStored(const std::string& what,
                                const std::function<absl::Status()>& attempt);

  // ---- Each of these returns the status with which the run ends ----
  // Writes the model after the last step.
  absl::Status EndFinished();
  // Saves the state of a run that was asked to stop.
  absl::Status EndStopped();
  // Saves the current state, if it can be saved, and returns the failure.
  absl::Status EndFailed(const absl::Status& failure);
  // Ends a run whose memory ran out `where`. Saves the current state first if `saves` is true.
  // REQUIRES: all ranks call it then.
  absl::Status EndOutOfMemory(const std::string& where, const std::string& what, bool saves);

 private:
  // Calls `save` in the phase kSaving, and adds its duration to the time of saves.
  absl::Status InSavingPhase(const std::function<absl::Status()>& save);
  // Waits for the checkpoint that is being written, and gives the next one its files.
  absl::Status Prepare();
  // Writes a checkpoint of the current state, for which Prepare has been called.
  absl::Status Write();
  void RecordSaved(int64_t step, const std::string& path);
  void ReportFailure(const absl::Status& status);

  CheckpointedRun& run_;
  RunControl& run_control_;
  ProcessGroup& group_ = run_.group();
  RunCheckpoints& checkpoints_ = run_.checkpoints();
  const RunLifecycleOptions options_;
  std::function<absl::Status()> prepare_;
  WallTimeLimit wall_time_{options_.start, options_.wall_time_limit};
  SaveInterval save_interval_{options_.start, options_.save_interval};  // used on rank 0
  absl::Duration save_time_;
  StepTime step_time_;               // of the steps that were shown
  bool is_saved_or_saving_ = false;  // the current step
  bool last_save_failed_ = false;
  std::shared_ptr<const PendingStep> pending_;
  KeptCheckpoints kept_{&checkpoints_};
};

}  // namespace taopd
