// What `train` and `sft` have in common: a run directory with a student that learns, its records
// and its checkpoints, from the start to the exported model.
//
//   CheckpointedRun run(MakeRunOptions(config, dtype));
//   run.Start(mode, "student.model", make_student);   locks the directory; loads the student
//   ...                                               data, teacher: all that can refuse the run
//   run.OpenOutput();                                 the run begins; an old one is replaced
//   while (!run.is_last()) {
//     train run.student(); ++run.state().step; run.output().Write(...);
//     if (run.is_due(save_every)) run.Save();
//   }
//   run.Export();                                     writes RUN_DIR/model
//
// Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/config/yaml.h"
#include "trainer/run/command_failure.h"
#include "trainer/run/effective_config.h"
#include "trainer/run/run_directory.h"
#include "trainer/run/run_output.h"
#include "trainer/run/train_state.h"
#include "trainer/student/student.h"

namespace taopd {

struct CheckpointedRunOptions {
  std::string name;
  std::string run_dir;
  std::string config_yaml;  // the effective configuration
  int64_t total_steps = 0;
  int64_t keep_checkpoints = 2;
  // How a student is loaded from a checkpoint.
  std::string dtype;
  std::string device;
  OptimizerConfig optimizer;
};

// Takes the options from a configuration with the sections run, optimizer and trainer, and prints
// the settings that differ from their defaults.
template <typename Config>
CheckpointedRunOptions MakeRunOptions(Config& config, const std::string& dtype) {
  CheckpointedRunOptions options;
  options.name = config.run.name;
  options.run_dir = config.run.Directory();
  options.config_yaml = WriteYamlSettings(DescribeSettings(config));
  options.total_steps = config.trainer.total_steps;
  options.keep_checkpoints = config.trainer.keep_checkpoints;
  options.dtype = dtype;
  options.device = config.trainer.device;
  options.optimizer = config.optimizer;
  Config defaults;
  PrintChangedSettings(DescribeSettings(config), DescribeSettings(defaults), options.run_dir);
  return options;
}

class CheckpointedRun {
 public:
  explicit CheckpointedRun(CheckpointedRunOptions options) : options_(std::move(options)) {}

  // Locks the directory. With mode.resume and a checkpoint there, the student, its optimizer and
  // the state come from the checkpoint; otherwise make_student makes the student, and `setting` is
  // the setting that its errors are about. An old run stays as it is.
  std::optional<CommandFailure> Start(const StartMode& mode, const std::string& setting,
                                      const std::function<absl::StatusOr<Student>()>& make_student);
  // Call it when nothing else can refuse the run. Replaces an old run by this one, or cuts the
  // records of a resumed run to where the checkpoint left them, and writes config.yaml. After a
  // failure the old run is there again.
  std::optional<CommandFailure> OpenOutput();

  // Writes a checkpoint and returns its path. A failure is logged; the older checkpoints are
  // intact.
  absl::StatusOr<std::string> Save();
  // Writes RUN_DIR/model and logs the end. Call it after the last step.
  std::optional<CommandFailure> Export();
  // The result of a run that was asked to stop. Call it after Save.
  CommandFailure Stopped() const;

  // Whether something that is done every `every` steps is due; never for 0.
  bool is_due(int64_t every) const { return every > 0 && state_.step % every == 0; }
  bool is_last() const { return state_.step >= options_.total_steps; }
  bool resumed() const { return directory_->checkpoint().has_value(); }
  // The checkpoint that the run was resumed from. REQUIRES: resumed().
  const std::string& resumed_from() const { return directory_->checkpoint()->path; }
  const std::string& run_dir() const { return options_.run_dir; }
  Student& student() { return student_; }
  TrainState& state() { return state_; }
  RunOutput& output() { return *output_; }

 private:
  absl::Status ReplaceAndOpen();

  const CheckpointedRunOptions options_;
  std::unique_ptr<RunDirectory> directory_;
  CheckpointStore* store_ = nullptr;  // owned by directory_
  Student student_;
  TrainState state_;
  std::unique_ptr<RunOutput> output_;
};

}  // namespace taopd
