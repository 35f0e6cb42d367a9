#include "trainer/run/checkpointed_run.h"

#include "common/base/log.h"
#include "common/io/file.h"

namespace taopd {

std::optional<CommandFailure> CheckpointedRun::Start(
    const StartMode& mode, const std::string& setting,
    const std::function<absl::StatusOr<Student>()>& make_student) {
  auto directory = RunDirectory::Open(options_.run_dir, mode, options_.keep_checkpoints);
  if (!directory.ok()) {
    return absl::IsDataLoss(directory.status()) ? BadData(directory.status())
                                                : BadUsage(directory.status());
  }
  directory_ = *std::move(directory);
  auto student = resumed() ? LoadStudent(resumed_from() + "/model", options_.dtype, options_.device,
                                         &options_.optimizer)
                           : make_student();
  if (!student.ok()) return BadData(Annotate(student.status(), setting));
  student_ = *std::move(student);
  if (!resumed()) return std::nullopt;
  auto restored = LoadCheckpointState(resumed_from(), &student_);
  if (!restored.ok()) return BadData(restored.status());
  state_ = *restored;
  return std::nullopt;
}

std::optional<CommandFailure> CheckpointedRun::OpenOutput() {
  const absl::Status opened = ReplaceAndOpen();
  if (!opened.ok()) return CommandFailure{kExitInternal, opened};
  directory_->DeleteOldRun();
  return std::nullopt;
}

absl::Status CheckpointedRun::ReplaceAndOpen() {
  if (!resumed()) TAOPD_RETURN_IF_ERROR(directory_->MoveOldRunAside());
  TAOPD_ASSIGN_OR_RETURN(store_, directory_->Checkpoints());
  RunOutputOptions options;
  options.run_dir = options_.run_dir;
  options.total_steps = options_.total_steps;
  if (resumed()) {
    options.resume_step = state_.step;
    options.metrics_bytes = state_.metrics_bytes;
    options.samples_bytes = state_.samples_bytes;
  }
  TAOPD_ASSIGN_OR_RETURN(output_, RunOutput::Open(options));
  // Last: from here on the new run has replaced the old one.
  return WriteFileAtomically(options_.run_dir + "/config.yaml", options_.config_yaml);
}

absl::StatusOr<std::string> CheckpointedRun::Save() {
  state_.metrics_bytes = output_->metrics_bytes();
  state_.samples_bytes = output_->samples_bytes();
  auto saved = store_->Save(state_.step, [this](const std::string& dir) {
    return SaveCheckpointFiles(student_, state_, options_.config_yaml, dir);
  });
  if (saved.ok()) {
    LogInfo("checkpoint saved", {{"step", state_.step}, {"path", *saved}});
  } else {
    LogError("checkpoint not saved", {{"step", state_.step}, {"error", saved.status()}});
  }
  return saved;
}

std::optional<CommandFailure> CheckpointedRun::Export() {
  const std::string model_dir = options_.run_dir + "/model";
  const absl::Status saved = SaveStudentModel(student_, model_dir);
  if (!saved.ok()) return CommandFailure{kExitInternal, saved};
  LogInfo("finished", {{"run", options_.name},
                       {"steps", state_.step},
                       {"train_seconds", state_.train_seconds},
                       {"model", model_dir}});
  return std::nullopt;
}

CommandFailure CheckpointedRun::Stopped() const {
  return {kExitStopped, absl::CancelledError(Concat("asked to stop after step ", state_.step,
                                                    "; continue with --resume"))};
}

}  // namespace taopd
