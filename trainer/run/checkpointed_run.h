// The common part of `train` and `sft`: a run directory with a student, its records and its
// checkpoints, from the start to the exported model.
//
//   CheckpointedRun run(MakeRunOptions(config, dtype));
//   run.Start(mode, "student.model", make_student);   locks the directory; loads the student
//   ...                                               data, teacher: all that can refuse the run
//   run.CheckFacts(facts);                            is it still the run of the checkpoint?
//   run.OpenOutput();                                 the run begins; an old one is replaced
//   while (!run.is_last()) {
//     train run.student(); ++run.state().step; run.output().Write(...);
//     if (run.is_due(save_every)) run.Save();
//   }
//   run.Export();                                     writes RUN_DIR/model
//
// With several ranks, all of them must call the same functions in the same order and get the same
// results. Rank 0 owns the directory, the records and the model's files; every rank reads
// checkpoints and writes its part of the optimizer's state. All ranks must see the same RUN_DIR.
//
// Not thread-safe.
#pragma once

#include <absl/time/time.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/config/yaml.h"
#include "common/dist/process_group.h"
#include "trainer/checkpoint/disk_plan.h"
#include "trainer/run/exit_status.h"
#include "trainer/run/recorded_metrics.h"
#include "trainer/run/resume_check.h"
#include "trainer/run/run_directory.h"
#include "trainer/run/run_output.h"
#include "trainer/run/save_in_progress.h"
#include "trainer/run/train_state.h"
#include "trainer/student/student.h"

namespace taopd {

struct CheckpointedRunOptions {
  std::string name;
  std::string run_dir;
  std::string config_yaml;  // the effective configuration
  RunFacts settings;        // the same configuration, setting by setting
  int64_t total_steps = 0;
  CheckpointOptions checkpoints;
  // The number of checkpoints that Pin may keep in addition, and trainer.disk_plan.
  int64_t max_pinned = 0;
  PlanPolicy disk_plan = PlanPolicy::kOff;
  // The versions of the weights that are published at once for servers of rollouts, and their
  // directory; empty: in run_dir.
  int64_t num_published = 0;
  std::string weights_dir;
  // The metric whose values so far a resumed run asks for (recorded()); may be empty.
  std::string watched_metric;
  // The dtype and the device with which a student is loaded from a checkpoint.
  std::string dtype;
  std::string device;
  OptimizerConfig optimizer;
  bool keeps_average = false;  // of the weights, in the optimizer
  // The adapters that are trained; nullopt: the weights are.
  std::optional<LoraOptions> lora;
  // The ranks of the run, or null for one rank. Must outlive the run.
  ProcessGroup* group = nullptr;
};

// Takes the options from a configuration with the sections run, optimizer and trainer.
template <typename Config>
CheckpointedRunOptions MakeRunOptions(Config& config, const std::string& dtype,
                                      ProcessGroup* group = nullptr) {
  CheckpointedRunOptions options;
  options.name = config.run.name;
  options.run_dir = config.run.Directory();
  options.config_yaml = WriteYamlSettings(DescribeSettings(config));
  options.settings = FactsOf(DescribeSettings(config));
  options.total_steps = config.trainer.total_steps;
  options.checkpoints.keep_last = config.trainer.keep_checkpoints;
  options.disk_plan = config.trainer.disk_plan;
  options.dtype = dtype;
  options.device = config.trainer.device;
  options.optimizer = config.optimizer;
  options.group = group;
  return options;
}

class CheckpointedRun {
 public:
  explicit CheckpointedRun(CheckpointedRunOptions options);

  // Locks the directory. With mode.resume and a checkpoint there, compares the settings with those
  // of the checkpoint's run, of which CheckFacts tells; the student, its optimizer and the state
  // come from the checkpoint. Otherwise make_student makes the student, and `setting` is the
  // setting that its errors are about. An old run stays as it is. With mode.dry_run the directory
  // is only checked; OpenOutput and what follows it must not be called then.
  absl::Status Start(const StartMode& mode, const std::string& setting,
                     const std::function<absl::StatusOr<Student>()>& make_student);
  // After Start: whether RUN_DIR/model is, byte for byte, the model of the checkpoint that the run
  // was resumed from, and what the records of that run say. Both change nothing; with them a caller
  // tells a run that is finished.
  absl::StatusOr<bool> IsExported() const;
  absl::StatusOr<RecordedMetrics> ReadRecords();
  // Compares facts besides the settings with those of the checkpoint's run. Every later checkpoint
  // records them. mode.allow_change may name them. The failure names all settings and facts that
  // differ, one per line.
  absl::Status CheckFacts(const RunFacts& facts);
  // A failure between Start and CheckFacts, after the settings that differ, which may be its cause.
  absl::Status BesideChanges(const absl::Status& failure) const;
  bool settings_differ() const { return !settings_.ok(); }
  // Compares the run's needs on the disk with the available room, as OpenOutput does first. Returns
  // kExitStorage if the run is refused.
  absl::Status CheckDisk();
  // Call it when nothing else can refuse the run. Replaces an old run by this one, or cuts the
  // records of a resumed run to where the checkpoint left them, and writes config.yaml. After a
  // failure the old run is there again.
  absl::Status OpenOutput();

  // Writes a checkpoint and returns its path. A failure is logged with the required and the
  // available room; older checkpoints stay intact. After a failure, further calls fail at once and
  // log nothing until the disk has more room than at the failure.
  absl::StatusOr<std::string> Save();
  // Saves while training continues: returns when the tensors are copied; threads write them
  // (save_in_progress.h). First waits for an earlier save. All functions below that access
  // checkpoints wait for it as well. Returns an error on all ranks if one of them has no memory for
  // its copy.
  absl::Status StartSave();
  // Returns the result of StartSave, once. Returns nullopt if there was none, or while it is being
  // written unless `waits` is true.
  std::optional<SaveResult> TakeSaved(bool waits);
  // Adds a text file to every later checkpoint.
  void SetCheckpointFile(const std::string& name, std::string text) {
    text_files_[name] = std::move(text);
  }
  // Makes every later checkpoint one within the step in progress, until a call with 0.
  // `mini_batches` of the step are done, and `write` writes this rank's part of the rest into a
  // checkpoint's directory.
  void SetPending(int64_t mini_batches, std::function<absl::Status(const std::string& dir)> write) {
    pending_mini_batches_ = mini_batches;
    write_pending_ = std::move(write);
  }
  // Makes `write` write this rank's part of what is in flight into the directory of every later
  // checkpoint. It owns what it writes; with StartSave it runs on another thread. May be null.
  void SetInFlight(std::function<absl::Status(const std::string& dir)> write) {
    write_in_flight_ = std::move(write);
  }
  // Keeps the checkpoints of these steps; those of an earlier call may be deleted.
  void Pin(std::set<int64_t> steps);
  // Goes back to the newest undamaged checkpoint of at most `step` steps and returns its path. As
  // in a resumed run, the student, its optimizer, the state and the records become those of the
  // checkpoint. Later checkpoints are deleted once it is loaded. Calls `begin`, if it is not null,
  // with the checkpoint's step before anything changes; an error from it is returned. Without
  // changing anything, returns NOT_FOUND if there is no checkpoint up to that step, and DATA_LOSS
  // if all of them are damaged (a resumed run then continues from a later one).
  absl::StatusOr<std::string> RollBack(
      int64_t step, const std::function<absl::Status(int64_t to_step)>& begin = nullptr);
  // Returns whether there is an undamaged checkpoint of this step, by the sizes of its files.
  absl::StatusOr<bool> HasCheckpoint(int64_t step);
  // Returns its path, or an empty path if there is none.
  absl::StatusOr<std::string> FindCheckpoint(int64_t step);
  // Writes RUN_DIR/model, which replaces an older one only when it is complete, and logs the end.
  // Call it after the last step. Like Save, it may be called again after a failure.
  absl::Status Export();
  // The result of a run that was asked to stop with this code. Call it after Save.
  absl::Status Stopped(ExitCode code) const;

  // Returns whether an action of every `every` steps is due; never for 0.
  bool is_due(int64_t every) const { return every > 0 && state_.step % every == 0; }
  bool is_last() const { return state_.step >= options_.total_steps; }
  bool resumed() const { return !resumed_from_.empty(); }
  // Returns the checkpoint from which the run was resumed, or an empty path for a new run.
  const std::string& resumed_from() const { return resumed_from_; }
  // Returns the checkpoint from which the state was last loaded, or an empty path for a new run.
  const std::string& checkpoint_dir() const { return checkpoint_dir_; }
  // Returns the records of a resumed run; those of a new run are empty.
  const RecordedMetrics& recorded() const { return recorded_; }
  const std::string& run_dir() const { return options_.run_dir; }
  // Returns the step of the newest checkpoint that is known to be complete, or -1.
  int64_t newest_saved_step() const { return newest_saved_step_; }
  // Returns the number of consecutive failed saves.
  int64_t num_failed_saves() const { return attempts_.num_failures(); }
  // If true, keeps only this rank's share of the gradients. Call it before Start.
  void ShardGradients(bool shard_gradients) { shard_gradients_ = shard_gradients; }
  // Returns this rank's shard of the optimizer, for LoadStudent.
  AdamWOptions optimizer_shard() const;
  ProcessGroup& group() { return *group_; }
  Student& student() { return student_; }
  TrainState& state() { return state_; }
  RunOutput& output() { return *output_; }

 private:
  absl::Status CheckSettings() const;
  absl::Status CheckRecordedFacts(const RunFacts& facts) const;
  absl::Status ReplaceAndOpen();
  // Returns the newest undamaged checkpoint of at most `step` steps.
  absl::StatusOr<CheckpointRef> FindForRollBack(int64_t step);
  // Records the result of a save. Returns it, with the required room added to an error.
  absl::StatusOr<std::string> Noted(int64_t step, absl::StatusOr<std::string> saved);
  absl::Status ExportAsRoot();
  absl::StatusOr<std::string> SaveAsRoot();
  // Writes every rank's part of a checkpoint into `dir`. The result is the same on all ranks.
  absl::Status SaveParts(const std::string& dir);
  void WaitForSave();
  void SetRecordSizes();
  // Returns rank 0's text, or its error, on all ranks.
  absl::StatusOr<std::string> FromRoot(const absl::StatusOr<std::string>& text);
  // Opens the records, cut to the position of the state.
  absl::Status OpenRecords(int64_t resume_step);

  const CheckpointedRunOptions options_;
  const std::unique_ptr<ProcessGroup> alone_;
  ProcessGroup* const group_;
  bool shard_gradients_ = false;
  std::string resumed_from_;
  std::vector<std::string> allow_change_;
  absl::Status settings_;  // the differences from the checkpoint's run
  std::map<std::string, std::string> text_files_;
  int64_t pending_mini_batches_ = 0;
  std::function<absl::Status(const std::string&dir)> write_pending_, write_in_flight_;
  RecordedMetrics recorded_;
  std::optional<RecordedMetrics> records_read_;  // read by ReadRecords for OpenOutput
  std::string checkpoint_dir_;
  int64_t checkpoint_bytes_ = 0, model_bytes_ = 0;  // sums over all ranks
  int64_t newest_saved_step_ = -1;
  DiskAttempts attempts_;                    // attempts to save and to export
  std::unique_ptr<RunDirectory> directory_;  // of rank 0
  CheckpointStore* store_ = nullptr;         // owned by directory_
  Student student_;
  TrainState state_;
  std::unique_ptr<RunOutput> output_;
  // The outputs from before a roll-back, whose pages other threads may still be reading.
  std::vector<std::unique_ptr<RunOutput>> closed_outputs_;
  // Its thread uses store_, which nobody else may use before the save is done. Its destructor waits
  // for the thread.
  std::unique_ptr<SaveInProgress> save_in_progress_;
};

}  // namespace taopd
