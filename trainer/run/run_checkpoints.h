// The checkpoints of a run that trains: writes them, between two steps or while the next one
// computes, and finds them again.
//
// With several ranks all of them must call the same functions in the same order, and get the same
// results. Rank 0 owns the store; every rank writes its part of the optimizer's state. Functions
// that access checkpoints wait for a save in progress. Not thread-safe.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "common/dist/process_group.h"
#include "trainer/checkpoint/checkpoint_store.h"
#include "trainer/checkpoint/disk_plan.h"
#include "trainer/run/records/run_records.h"
#include "trainer/run/save_in_progress.h"
#include "trainer/run/train_state.h"
#include "trainer/student/student.h"

namespace taopd {

class RunCheckpoints {
 public:
  // Writes this rank's part of something into a checkpoint's directory.
  using WriteFiles = SaveInProgress::WriteFiles;

  // Everything must outlive the object. A save stores the sizes of the records in the state.
  RunCheckpoints(ProcessGroup* group, RunRecords* records, const Student* student,
                 TrainState* state, const std::string& run_dir)
      : group_(group),
        records_(records),
        student_(student),
        state_(state),
        model_dir_(run_dir + "/model"),
        attempts_(run_dir) {}

  // Sets where checkpoints are: `store` is null on ranks other than 0, and must outlive the object.
  // Call it before all functions that access checkpoints.
  void SetStore(CheckpointStore* store) { store_ = store; }
  // Sets the bytes of a checkpoint and of the exported model, summed over all ranks.
  void SetSizes(int64_t checkpoint_bytes, int64_t model_bytes) {
    checkpoint_bytes_ = checkpoint_bytes;
    model_bytes_ = model_bytes;
  }
  // Records that the state was loaded from the checkpoint of its step.
  void NoteLoadedCheckpoint() { newest_saved_step_ = state_->step; }

  // Writes a checkpoint and returns its path. After a failure, which is logged, older checkpoints
  // are intact, and further calls fail immediately and log nothing until the disk has more free
  // space than at the failure. An error names the required and the free space.
  absl::StatusOr<std::string> Save();
  // Saves while training continues: returns when the tensors are copied; threads write them.
  // Returns an error on all ranks if one of them has no memory for its copy.
  absl::Status StartSave();
  // Returns the result of StartSave, once. Returns nullopt if no save was started. While the
  // checkpoint is being written, returns nullopt or, if `waits` is true, waits for it.
  std::optional<SaveResult> TakeFinishedSave(bool waits);
  // Writes RUN_DIR/model, which replaces an older one only when it is complete. Like Save, it may
  // be called again after a failure.
  absl::Status ExportModel() {
    return group_->AgreeOnStatus(group_->is_root() ? ExportAsRoot() : absl::OkStatus());
  }

  // Adds a text file to every later checkpoint.
  void SetFile(const std::string& name, std::string text) { text_files_[name] = std::move(text); }
  // Until a call with 0, every later checkpoint is one within the step in progress, of which
  // `mini_batches` are done. `write` writes this rank's part of the rest.
  void SetPending(int64_t mini_batches, WriteFiles write) {
    pending_mini_batches_ = mini_batches;
    write_pending_ = std::move(write);
  }
  int64_t pending_mini_batches() const { return pending_mini_batches_; }
  // Lets `write` add this rank's part of what is in flight to every later checkpoint. `write` owns
  // its data, runs on another thread, and may be null.
  void SetInFlight(WriteFiles write) { write_in_flight_ = std::move(write); }

  // Keeps the checkpoints of these steps; those of an earlier call may be deleted.
  void Pin(std::set<int64_t> steps);
  // Returns the path of an undamaged checkpoint of this step, by the sizes of its files, or an
  // empty path if there is none.
  absl::StatusOr<std::string> Find(int64_t step) {
    return group_->BroadcastText(FindOnRoot(step, step).path, 0);
  }
  // Returns the newest step of at most `step` for which Find returns a checkpoint, if there is one.
  absl::StatusOr<std::optional<int64_t>> NewestStep(int64_t step);
  // Returns the newest undamaged checkpoint of at most `step` steps. Returns NOT_FOUND if there is
  // no checkpoint up to that step, and DATA_LOSS if all of them are damaged.
  absl::StatusOr<CheckpointRef> FindNewest(int64_t step);
  absl::Status DeleteAfter(int64_t step);

  // Returns the step of the newest checkpoint that is known to be complete, or -1.
  int64_t newest_saved_step() const { return newest_saved_step_; }
  // Returns the number of consecutive failed saves.
  int64_t num_failed_saves() const { return attempts_.num_failures(); }

 private:
  // Begins to write the state, from copies of the tensors or from the tensors themselves.
  absl::StatusOr<std::unique_ptr<SaveInProgress>> Begin(bool copies);
  // Records the result of a save. Returns it, with the required space added to an error.
  absl::StatusOr<std::string> RecordSaveResult(int64_t step, absl::StatusOr<std::string> saved);
  absl::Status ExportAsRoot();
  // Returns the newest checkpoint of these steps that Find would return; its step is -1 if there is
  // none, and on ranks other than 0.
  CheckpointRef FindOnRoot(int64_t first_step, int64_t last_step);
  void WaitForSave() {
    if (save_in_progress_ != nullptr) save_in_progress_->IsDone(/*waits=*/true);
  }

  ProcessGroup* const group_;
  RunRecords* const records_;
  const Student* const student_;
  TrainState* const state_;
  const std::string model_dir_;
  CheckpointStore* store_ = nullptr;
  std::map<std::string, std::string> text_files_;
  int64_t pending_mini_batches_ = 0;
  WriteFiles write_pending_, write_in_flight_;
  int64_t checkpoint_bytes_ = 0, model_bytes_ = 0;
  int64_t newest_saved_step_ = -1;
  DiskAttempts attempts_;  // attempts to save and to export
  // Its thread uses store_, which nobody else may use before the save is done. Its destructor waits
  // for the thread.
  std::unique_ptr<SaveInProgress> save_in_progress_;
};

}  // namespace taopd
