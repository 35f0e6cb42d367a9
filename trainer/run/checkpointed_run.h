// What `train` and `sft` have in common: a run directory with a student that learns, its
// checkpoints and records, from the first start or a resumed one to the export.
//
//   CheckpointedRun run(options);
//   run.Start(mode, [&] { return LoadStudent(...); })   the directory, and the student: given, or
//   of a checkpoint
//   ...                                                 data and whatever else may refuse to go on
//   run.OpenOutput()                                    from here on the directory is this run's
//   loop: train student(); state().step = ...; output().Write(...); Save() when due
//   Export()
//
// One thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "trainer/run/run_directory.h"
#include "trainer/run/run_output.h"
#include "trainer/run/run_setup.h"
#include "trainer/run/student.h"

namespace taopd {

struct CheckpointedRunOptions {
  std::string name;
  std::string run_dir;
  std::string config_yaml;  // the effective configuration
  int64_t total_steps = 0;
  int64_t keep_checkpoints = 2;
  // How a student comes back from a checkpoint.
  std::string dtype;
  std::string device;
  OptimizerConfig optimizer;
};

// Of a configuration with the sections run, optimizer and trainer, which is shown.
template <typename Config>
CheckpointedRunOptions MakeRunOptions(Config& config, const std::string& dtype) {
  CheckpointedRunOptions options;
  options.name = config.run.name;
  options.run_dir = config.run.Directory();
  options.config_yaml = ShowEffectiveConfig(DescribeSettings(config));
  options.total_steps = config.trainer.total_steps;
  options.keep_checkpoints = config.trainer.keep_checkpoints;
  options.dtype = dtype;
  options.device = config.trainer.device;
  options.optimizer = config.optimizer;
  return options;
}

class CheckpointedRun {
 public:
  explicit CheckpointedRun(CheckpointedRunOptions options) : options_(std::move(options)) {}

  // Locks the directory. With mode.resume and a checkpoint there, the student, its optimizer and
  // the state come from the checkpoint; otherwise make_student makes the student, and `setting` is
  // the setting that its errors are about. An old run stays as it is.
  std::optional<RunFailure> Start(const StartMode& mode, const std::string& setting,
                                  const std::function<absl::StatusOr<Student>()>& make_student);
  // Call it when nothing else can refuse the run. Replaces an old run by this one, or cuts the
  // records of a resumed run to where the checkpoint left them, and writes config.yaml. After a
  // failure the old run is there again.
  std::optional<RunFailure> OpenOutput();

  // The new checkpoint's path. When it cannot be written the older ones are intact; that is logged.
  absl::StatusOr<std::string> Save();
  // Writes RUN_DIR/model and logs the end. After the last step.
  std::optional<RunFailure> Export();
  // How a run that was asked to stop ends, after its checkpoint.
  RunFailure Stopped() const;

  bool is_due(int64_t every) const { return every > 0 && state_.step % every == 0; }
  bool is_last() const { return state_.step >= options_.total_steps; }
  bool resumed() const { return directory_->checkpoint().has_value(); }
  // Where it was resumed from. REQUIRES: resumed().
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
