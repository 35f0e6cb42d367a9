// The checkpoints of a distillation run while it trains, and the ways in which a run ends, which
// save first.
//
// All ranks call the same functions in the same order. Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "trainer/commands/train/training_parts.h"
#include "trainer/guard/wall_time.h"
#include "trainer/step/pending/pending_step.h"

namespace taopd {

class RunSaves {
 public:
  // `parts` must outlive the object.
  explicit RunSaves(TrainingParts* parts);

  // Calls `prepare` before each save: it gives the checkpoint its further files. An error means
  // that there can be no checkpoint.
  void OnPrepare(std::function<absl::Status()> prepare) { prepare_ = std::move(prepare); }
  // Restores the rest of a step from the checkpoint that the state was loaded from, if it has one.
  absl::Status Restore();

  // Saves the current state. A failure is logged, and the next step tries again.
  absl::Status Save();
  // Saves the current state before the run ends, however long that takes (until_stored.h).
  absl::Status SaveOrWait();
  // Saves during the next step if trainer.async_save and the memory allow it, otherwise like Save.
  void StartSave();
  // Records a checkpoint that was written during a step, if there is one. If `waits` is true, waits
  // until it is written.
  void RecordFinishedSave(bool waits);
  // Returns whether trainer.save_minutes asks for a checkpoint.
  bool IsDue(absl::Time now) const { return save_interval_.IsDue(now); }
  // Waits for a checkpoint that is being written. Returns whether the current step is saved.
  bool WaitUntilSaved();
  bool is_saved_or_saving() const { return is_saved_or_saving_; }
  // MarkChanged records that the state differs from the last checkpoint. MarkSaved records that the
  // state is that of a checkpoint.
  void MarkChanged() { is_saved_or_saving_ = false; }
  void MarkSaved() { is_saved_or_saving_ = true; }
  // Returns the time that saves took since the last call.
  absl::Duration TakeElapsed() { return std::exchange(save_time_, absl::ZeroDuration()); }

  // Records that the weights of the newest checkpoint have made a step without an alarm.
  void MarkNewestGood();
  // From the next save on, keeps the checkpoint of this step, whose weights are being evaluated; -1
  // if there is none.
  void PinEvaluated(int64_t step) { evaluated_ = step; }
  // Keeps the checkpoints of the best evaluation and of best.json, and the last good one. The steps
  // are -1 if there is none.
  void Pin(int64_t best_step, int64_t named_best_step);

  // Makes later checkpoints lie between two mini-batches of the step or, if null, between steps.
  void SetPending(std::shared_ptr<const PendingStep> pending);
  // The rest of the step after state.step that a stopped run has left; null if there is none.
  const PendingStep* pending() const { return pending_.get(); }

  // ---- Each of these returns the status with which the run ends ----
  // Ends a run that was asked to stop.
  absl::Status Stopped();
  // Saves the current step, if it can be saved, and returns the failure.
  absl::Status FailSaved(const absl::Status& failure);
  // Ends a run whose memory ran out `where`. Saves `before` if no update has followed it, that is,
  // if AdamW::num_changes is still `changes_before`.
  absl::Status OutOfMemory(const TrainState& before, int64_t changes_before,
                           const std::string& where, const std::string& what);

 private:
  absl::Status Prepare();
  void ReportFailure(const absl::Status& status);
  void PinAll();

  TrainingParts& parts_;
  CheckpointedRun& run_;
  RunCheckpoints& checkpoints_;
  std::function<absl::Status()> prepare_;
  SaveInterval save_interval_;  // used on rank 0
  absl::Duration save_time_;
  bool is_saved_or_saving_ = false;  // the current step
  std::shared_ptr<const PendingStep> pending_;
  // Steps of checkpoints, or -1.
  int64_t newest_ = -1;         // may still be being written
  int64_t newest_before_ = -1;  // the newest one before the one that is being written
  int64_t last_good_ = -1;      // the newest one whose weights have made a step without an alarm
  int64_t best_ = -1;
  int64_t named_best_ = -1;
  int64_t evaluated_ = -1;
};

}  // namespace taopd
