#include "trainer/run/checkpointed_run.h"

#include "common/base/log.h"
#include "common/io/file.h"

namespace taopd {

std::optional<CommandFailure> CheckpointedRun::Start(
    const StartMode& mode, const std::string& setting,
    const std::function<absl::StatusOr<Student>()>& make_student) {
  auto directory = RunDirectory::Open(options_.run_dir, mode, options_.checkpoints);
  if (!directory.ok()) {
    return absl::IsDataLoss(directory.status()) ? BadData(directory.status())
                                                : BadUsage(directory.status());
  }
  directory_ = *std::move(directory);
  allow_change_ = mode.allow_change;
  text_files_["config.yaml"] = options_.config_yaml;
  text_files_["identity.json"] = WriteRunFacts(options_.settings);
  if (resumed()) {
    const absl::Status same = CheckSettings();
    if (!same.ok()) return absl::IsDataLoss(same) ? BadData(same) : BadUsage(same);
  }
  auto student = resumed() ? LoadStudent(resumed_from() + "/model", options_.dtype, options_.device,
                                         &options_.optimizer)
                           : make_student();
  if (!student.ok()) return BadData(Annotate(student.status(), setting));
  student_ = *std::move(student);
  if (!resumed()) return std::nullopt;
  auto restored = LoadCheckpointState(resumed_from(), &student_);
  if (!restored.ok()) return BadData(restored.status());
  state_ = *restored;
  checkpoint_dir_ = resumed_from();
  return std::nullopt;
}

absl::Status CheckpointedRun::CheckSettings() const {
  const std::string path = resumed_from() + "/identity.json";
  if (!FileExists(path)) {
    LogWarning("the checkpoint does not record its run's settings: they are not compared",
               {{"path", resumed_from()}});
    return absl::OkStatus();
  }
  TAOPD_ASSIGN_OR_RETURN(const RunFacts recorded, ReadRunFacts(path));
  std::vector<std::string> known;
  for (const RunFact& fact : recorded) known.push_back(fact.name);
  for (const RunFact& fact : options_.settings) known.push_back(fact.name);
  TAOPD_RETURN_IF_ERROR(CheckAllowedNames(allow_change_, known));
  return CheckResume(recorded, options_.settings, allow_change_);
}

std::optional<CommandFailure> CheckpointedRun::CheckFacts(const RunFacts& facts) {
  RunFacts all = options_.settings;
  all.insert(all.end(), facts.begin(), facts.end());
  text_files_["identity.json"] = WriteRunFacts(all);
  if (!resumed() || !FileExists(resumed_from() + "/identity.json")) return std::nullopt;
  const auto recorded = ReadRunFacts(resumed_from() + "/identity.json");
  if (!recorded.ok()) return BadData(recorded.status());
  const absl::Status same = CheckResume(*recorded, facts, allow_change_);
  if (!same.ok()) return BadUsage(same);
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
  TAOPD_RETURN_IF_ERROR(OpenRecords(resumed() ? state_.step : -1));
  // Last: from here on the new run has replaced the old one.
  return WriteFileAtomically(options_.run_dir + "/config.yaml", options_.config_yaml);
}

absl::Status CheckpointedRun::OpenRecords(int64_t resume_step) {
  RunOutputOptions options;
  options.run_dir = options_.run_dir;
  options.total_steps = options_.total_steps;
  if (resume_step >= 0) {
    TAOPD_ASSIGN_OR_RETURN(recorded_,
                           ReadRecordedMetrics(options_.run_dir, resume_step, state_.metrics_bytes,
                                               state_.samples_bytes, options_.watched_metric));
    options.resume_step = resume_step;
    options.metrics_bytes = recorded_.metrics_bytes;
    options.samples_bytes = recorded_.samples_bytes;
  }
  TAOPD_ASSIGN_OR_RETURN(output_, RunOutput::Open(options));
  return absl::OkStatus();
}

absl::StatusOr<std::string> CheckpointedRun::RollBack(int64_t step) {
  TAOPD_ASSIGN_OR_RETURN(const std::vector<CheckpointRef> all, store_->List());
  if (all.empty() || all.front().step > step) {
    return NotFound("there is no checkpoint of at most ", step, " steps");
  }
  TAOPD_RETURN_IF_ERROR(store_->DeleteAfter(step));
  TAOPD_ASSIGN_OR_RETURN(const std::optional<CheckpointRef> newest, store_->Newest());
  if (!newest) return NotFound("there is no checkpoint of at most ", step, " steps");
  TAOPD_RETURN_IF_ERROR(ReloadWeights(newest->path + "/model", student_.decoder.get()));
  TAOPD_ASSIGN_OR_RETURN(state_, LoadCheckpointState(newest->path, &student_));
  checkpoint_dir_ = newest->path;
  std::unique_ptr<RunOutput> before = std::move(output_);
  if (const absl::Status opened = OpenRecords(state_.step); !opened.ok()) {
    output_ = std::move(before);  // somebody may still write
    return opened;
  }
  closed_outputs_.push_back(std::move(before));
  return newest->path;
}

absl::StatusOr<std::string> CheckpointedRun::Save() {
  state_.metrics_bytes = output_->metrics_bytes();
  state_.samples_bytes = output_->samples_bytes();
  auto saved = store_->Save(state_.step, [this](const std::string& dir) {
    return SaveCheckpointFiles(student_, state_, text_files_, dir);
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
