// The common part of `train` and `sft`: a run directory with a student, its records and its
// checkpoints, from the start to the exported model.
//
//   CheckpointedRun run(MakeRunOptions(config, dtype));
//   run.Start(mode, {"student.model", load_student});   locks the directory; loads the student
//   ...                                                 data, teacher: all that can refuse the run
//   run.CheckFacts(facts);                              is it still the run of the checkpoint?
//   run.OpenOutput();                                   the run begins; an old one is replaced
//   while (!run.is_last()) {
//     train run.student(); ++run.state().step; run.output().Write(...);
//     if (run.is_due(save_every)) run.checkpoints().Save();
//   }
//   run.Export();                                       writes RUN_DIR/model
//
// With several ranks, all of them must call the same functions in the same order and get the same
// results. Rank 0 owns the directory; every rank reads checkpoints. All ranks must see the same
// RUN_DIR.
//
// Not thread-safe, except for PrometheusText.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/config/yaml.h"
#include "common/dist/process_group.h"
#include "trainer/run/exit_status.h"
#include "trainer/run/resume/resume_check.h"
#include "trainer/run/run_checkpoints.h"
#include "trainer/run/run_directory.h"
#include "trainer/student/student.h"

namespace taopd {

struct CheckpointedRunOptions {
  std::string name;
  std::string run_dir;
  std::string config_yaml;  // the effective configuration
  RunFacts settings;        // the same configuration, setting by setting
  int64_t total_steps = 0;
  CheckpointOptions checkpoints;
  // The number of checkpoints that may be pinned in addition, and trainer.disk_plan.
  int64_t max_pinned = 0;
  PlanPolicy disk_plan = PlanPolicy::kOff;
  // The number of versions of the weights that exist at a time for servers of rollouts, and their
  // directory; empty: in run_dir.
  int64_t num_published = 0;
  std::string weights_dir;
  // The metric whose earlier values a resumed run reads (recorded()); may be empty.
  std::string watched_metric;
  // The dtype and the device with which a student is loaded from a checkpoint.
  std::string dtype;
  std::string device;
  OptimizerConfig optimizer;
  bool keeps_average = false;  // of the weights, in the optimizer
  // The adapters that are trained; nullopt: the weights are. The base of a checkpoint's adapters is
  // the base of the model in config.base_model or, if that is empty, the one that the adapters
  // name.
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

// The student of a new run.
struct StudentSource {
  std::string setting;  // the setting that errors are about
  // Makes the student, whose optimizer has this rank's shard.
  std::function<absl::StatusOr<Student>(const AdamWOptions& shard)> make;
  bool shards_gradients = false;  // only this rank's share of the gradients is kept
};

class CheckpointedRun {
 public:
  explicit CheckpointedRun(CheckpointedRunOptions options) : options_(std::move(options)) {}

  // Locks the directory. With mode.resume and a checkpoint there, compares the settings with those
  // of the checkpoint's run, and CheckFacts reports the differences; the student, its optimizer and
  // the state come from the checkpoint. Otherwise they come from `source`. An old run stays as it
  // is. With mode.dry_run the directory is only checked; OpenOutput and what follows it must not be
  // called then.
  absl::Status Start(const StartMode& mode, const StudentSource& source);
  // Call them after Start. IsExported returns whether RUN_DIR/model is, byte for byte, the model of
  // the checkpoint that the run was resumed from; ReadRecords returns the records of that run.
  // Together they show whether the run is finished. Neither changes anything.
  absl::StatusOr<bool> IsExported() const;
  absl::StatusOr<RecordedMetrics> ReadRecords() { return records_.Read(state_); }
  // Compares facts besides the settings with those of the checkpoint's run. Every later checkpoint
  // records them. mode.allow_change may name them. The failure names all settings and facts that
  // differ, one per line. Call it once.
  absl::Status CheckFacts(const RunFacts& facts);
  // Returns a failure between Start and CheckFacts, preceded by the settings that differ, because
  // they may have caused it.
  absl::Status WithChangedSettings(const absl::Status& failure) const;
  bool settings_differ() const { return !settings_check_.ok(); }
  // Returns the names of the settings and of this rank's facts whose values differ from those that
  // checkpoint_dir() records. There are none for a new run, or if the checkpoint does not record
  // them. Call it after CheckFacts. Returns DATA_LOSS if the record cannot be parsed.
  absl::StatusOr<std::vector<std::string>> ChangedSinceCheckpoint() const;
  // Compares the disk space that the run needs with the free space, as OpenOutput does first.
  // Returns kExitStorage if the run is refused.
  absl::Status CheckDisk();
  // Call it when nothing else can refuse the run. Replaces an old run by this one, or cuts the
  // records of a resumed run to where the checkpoint left them, and writes config.yaml. If a
  // resumed run has a model, writes RUN_DIR/continued, which Export and LeaveFinished remove. After
  // a failure the old run is restored.
  absl::Status OpenOutput();

  // Goes back to the newest undamaged checkpoint of at most `step` steps and returns its path. As
  // in a resumed run, the student, its optimizer, the state and the records become those of the
  // checkpoint. Later checkpoints are deleted once it is loaded. Calls `begin`, if it is not null,
  // with the checkpoint's step before anything changes; an error from it is returned. Errors of
  // RunCheckpoints::FindNewest are returned without changing anything; a resumed run then continues
  // from a later checkpoint.
  absl::StatusOr<std::string> RollBack(
      int64_t step, const std::function<absl::Status(int64_t to_step)>& begin = nullptr);
  // Writes RUN_DIR/model, and logs the end. Call it after the last step. It may be called again
  // after a failure.
  absl::Status Export();
  // Logs that a finished run stays as it is.
  void LeaveFinished();
  // Returns the status of a run that was asked to stop with this code. Call it after Save.
  absl::Status Stopped(ExitCode code) const;

  // Returns whether an action of every `every` steps is due; never for 0.
  bool is_due(int64_t every) const { return every > 0 && state_.step % every == 0; }
  bool is_last() const { return state_.step >= options_.total_steps; }
  bool resumed() const { return !resumed_from_.empty(); }
  // Returns the checkpoint from which the run was resumed, or an empty path for a new run.
  const std::string& resumed_from() const { return resumed_from_; }
  // Returns the checkpoint from which the state was last loaded, or an empty path for a new run.
  const std::string& checkpoint_dir() const { return checkpoint_dir_; }
  const std::string& run_dir() const { return options_.run_dir; }
  const CheckpointedRunOptions& options() const { return options_; }
  ProcessGroup& group() { return *group_; }
  Student& student() { return student_; }
  TrainState& state() { return state_; }
  // The checkpoints. They can be saved after OpenOutput.
  RunCheckpoints& checkpoints() { return checkpoints_; }
  const RunCheckpoints& checkpoints() const { return checkpoints_; }
  // Returns the records of a resumed run; those of a new run are empty.
  const RecordedMetrics& recorded() const { return records_.recorded(); }
  RunOutput& output() { return records_.output(); }
  // Returns the page /metrics of the records; empty before OpenOutput. Any thread may call it.
  std::string PrometheusText() const { return records_.PrometheusText(); }

 private:
  // Returns the checkpoint to resume from, or an empty path. Used on rank 0.
  absl::StatusOr<std::string> OpenDirectory(const StartMode& mode);
  absl::Status CheckSettings() const;
  absl::Status CheckRecordedFacts(const RunFacts& facts) const;
  absl::Status ReplaceOldRun();
  void RemoveContinuedFile() const;

  const CheckpointedRunOptions options_;
  const std::unique_ptr<ProcessGroup> alone_ = ProcessGroup::Alone();
  ProcessGroup* const group_ = options_.group != nullptr ? options_.group : alone_.get();
  std::string resumed_from_;
  RunFacts identity_ = options_.settings;  // CheckFacts adds the facts
  std::vector<std::string> allow_change_;
  absl::Status settings_check_;  // names the differences from the checkpoint's run
  std::string checkpoint_dir_;
  std::unique_ptr<RunDirectory> directory_;  // of rank 0
  Student student_;
  TrainState state_;
  RunRecords records_{group_, options_.run_dir, options_.total_steps, options_.settings,
                      options_.watched_metric};
  RunCheckpoints checkpoints_{group_, &records_, &student_, &state_, options_.run_dir};
};

}  // namespace taopd
