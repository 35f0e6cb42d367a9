#include "trainer/run/checkpointed_run.h"

#include <memory>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/io/file.h"
#include "trainer/dist/optimizer_shards.h"

namespace taopd {

CheckpointedRun::CheckpointedRun(CheckpointedRunOptions options)
    : options_(std::move(options)),
      alone_(ProcessGroup::Alone()),
      group_(options_.group != nullptr ? options_.group : alone_.get()) {}

AdamWOptions CheckpointedRun::optimizer_shard() const {
  AdamWOptions options;
  options.layout.num_shards = group_->world_size();
  options.shard = group_->rank();
  options.shard_gradients = shard_gradients_;
  return options;
}

absl::StatusOr<std::string> CheckpointedRun::FromRoot(const absl::StatusOr<std::string>& text) {
  TAOPD_RETURN_IF_ERROR(group_->AgreeOnStatus(text.status()));
  return group_->BroadcastText(text.value_or(""), 0);
}

std::optional<CommandFailure> CheckpointedRun::Start(
    const StartMode& mode, const std::string& setting,
    const std::function<absl::StatusOr<Student>()>& make_student) {
  absl::StatusOr<std::string> checkpoint = "";
  if (group_->is_root()) {
    auto directory = RunDirectory::Open(options_.run_dir, mode, options_.checkpoints);
    if (!directory.ok()) checkpoint = directory.status();
    if (directory.ok()) {
      directory_ = *std::move(directory);
      if (directory_->checkpoint()) checkpoint = directory_->checkpoint()->path;
    }
  }
  checkpoint = FromRoot(checkpoint);
  if (!checkpoint.ok()) {
    return absl::IsDataLoss(checkpoint.status()) ? BadData(checkpoint.status())
                                                 : BadUsage(checkpoint.status());
  }
  resumed_from_ = *checkpoint;
  allow_change_ = mode.allow_change;
  text_files_["config.yaml"] = options_.config_yaml;
  text_files_["identity.json"] = WriteRunFacts(options_.settings);
  if (resumed()) {
    const absl::Status same =
        group_->AgreeOnStatus(group_->is_root() ? CheckSettings() : absl::OkStatus());
    if (!same.ok()) return absl::IsDataLoss(same) ? BadData(same) : BadUsage(same);
  }
  auto student = resumed() ? LoadStudent(resumed_from() + "/model", options_.dtype, options_.device,
                                         &options_.optimizer, "", optimizer_shard())
                           : make_student();
  if (const absl::Status loaded = group_->AgreeOnStatus(student.status()); !loaded.ok()) {
    return BadData(Annotate(loaded, setting));
  }
  student_ = *std::move(student);
  if (!resumed()) return std::nullopt;
  auto restored = LoadCheckpointState(resumed_from(), &student_);
  if (const absl::Status read = group_->AgreeOnStatus(restored.status()); !read.ok()) {
    return BadData(read);
  }
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
  if (!resumed()) return std::nullopt;
  const absl::Status same = group_->AgreeOnStatus(CheckRecordedFacts(facts));
  if (same.ok()) return std::nullopt;
  return absl::IsInvalidArgument(same) ? BadUsage(same) : BadData(same);
}

absl::Status CheckpointedRun::CheckRecordedFacts(const RunFacts& facts) const {
  const std::string path = resumed_from() + "/identity.json";
  if (!FileExists(path)) return absl::OkStatus();
  TAOPD_ASSIGN_OR_RETURN(const RunFacts recorded, ReadRunFacts(path));
  return CheckResume(recorded, facts, allow_change_);
}

std::optional<CommandFailure> CheckpointedRun::OpenOutput() {
  absl::Status opened = group_->is_root() ? ReplaceAndOpen() : absl::OkStatus();
  opened = group_->AgreeOnStatus(opened);
  // Rank 0 has cut the records of a resumed run.
  if (opened.ok() && !group_->is_root()) {
    opened = OpenRecords(resumed() ? state_.step : -1);
  }
  if (opened.ok()) opened = group_->AgreeOnStatus(opened);
  if (!opened.ok()) return CommandFailure{kExitInternal, opened};
  if (directory_) directory_->DeleteOldRun();
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
  if (!group_->is_root()) {
    output_ = RunOutput::None();
    return absl::OkStatus();
  }
  TAOPD_ASSIGN_OR_RETURN(output_, RunOutput::Open(options));
  return absl::OkStatus();
}

absl::StatusOr<std::string> CheckpointedRun::FindAndDeleteAfter(int64_t step) {
  TAOPD_ASSIGN_OR_RETURN(const std::vector<CheckpointRef> all, store_->List());
  if (all.empty() || all.front().step > step) {
    return NotFound("there is no checkpoint of at most ", step, " steps");
  }
  TAOPD_RETURN_IF_ERROR(store_->DeleteAfter(step));
  TAOPD_ASSIGN_OR_RETURN(const std::optional<CheckpointRef> newest, store_->Newest());
  if (!newest) return NotFound("there is no checkpoint of at most ", step, " steps");
  return newest->path;
}

absl::StatusOr<std::string> CheckpointedRun::RollBack(int64_t step) {
  WaitForSave();
  TAOPD_ASSIGN_OR_RETURN(const std::string path,
                         FromRoot(group_->is_root() ? FindAndDeleteAfter(step) : ""));
  TAOPD_RETURN_IF_ERROR(
      group_->AgreeOnStatus(ReloadWeights(path + "/model", student_.decoder.get())));
  auto restored = LoadCheckpointState(path, &student_);
  TAOPD_RETURN_IF_ERROR(group_->AgreeOnStatus(restored.status()));
  state_ = *restored;
  checkpoint_dir_ = path;
  std::unique_ptr<RunOutput> before = std::move(output_);
  absl::Status opened = group_->is_root() ? OpenRecords(state_.step) : absl::OkStatus();
  opened = group_->AgreeOnStatus(opened);
  if (opened.ok() && !group_->is_root()) opened = OpenRecords(state_.step);
  if (opened.ok()) opened = group_->AgreeOnStatus(opened);
  if (!opened.ok()) {
    output_ = std::move(before);  // somebody may still write
    return opened;
  }
  closed_outputs_.push_back(std::move(before));
  return path;
}

absl::Status CheckpointedRun::SaveParts(const std::string& dir) {
  absl::Status status;
  if (group_->is_root()) {
    status = CheckpointContents(student_, state_, text_files_, /*copies=*/false).Write(dir);
  }
  if (group_->world_size() > 1) {
    status.Update(OptimizerShardsToWrite(*student_.optimizer, group_->rank(), /*copies=*/false)
                      .Write(dir + "/" + kOptimizerShardsDir));
  }
  return group_->AgreeOnStatus(status);
}

absl::StatusOr<std::string> CheckpointedRun::SaveAsRoot() {
  bool has_begun = false;
  auto saved = store_->Save(state_.step, [&](const std::string& dir) -> absl::Status {
    has_begun = true;
    absl::Status made;
    if (group_->world_size() > 1) made = MakeDirectories(dir + "/" + kOptimizerShardsDir);
    TAOPD_RETURN_IF_ERROR(FromRoot(made.ok() ? absl::StatusOr<std::string>(dir) : made).status());
    return SaveParts(dir);
  });
  // It is there already, or its directory could not be made: the others have nothing to do.
  if (!has_begun) TAOPD_RETURN_IF_ERROR(FromRoot("").status());
  return saved;
}

absl::StatusOr<std::string> CheckpointedRun::Save() {
  WaitForSave();
  SetRecordSizes();
  absl::StatusOr<std::string> saved = "";
  if (group_->is_root()) {
    saved = SaveAsRoot();
  } else if (auto dir = FromRoot(""); dir.ok() && !dir->empty()) {
    // The error is rank 0's, too, which has more to say.
    if (absl::Status parts = SaveParts(*dir); !parts.ok()) LogDebug("part not saved");
  }
  saved = FromRoot(saved);
  if (group_->is_root()) LogSaved(state_.step, saved);
  return saved;
}

absl::Status CheckpointedRun::SaveBeside() {
  WaitForSave();
  SetRecordSizes();
  // Of rank 0: all but the parts of the optimizer that several ranks have.
  std::shared_ptr<const CheckpointContents> contents;
  std::shared_ptr<const OptimizerShardsToWrite> shards;
  absl::Status copied;
  try {
    if (group_->is_root()) {
      contents = std::make_shared<const CheckpointContents>(student_, state_, text_files_,
                                                            /*copies=*/true);
    }
    if (group_->world_size() > 1) {
      shards = std::make_shared<const OptimizerShardsToWrite>(*student_.optimizer, group_->rank(),
                                                              /*copies=*/true);
    }
  } catch (const std::exception& error) {
    const std::string what = error.what();
    copied = ResourceExhausted("no copy of the student: ", what.substr(0, what.find('\n')));
  }
  TAOPD_RETURN_IF_ERROR(group_->AgreeOnStatus(copied));
  beside_ = BesideSave::Start(group_, store_, state_.step,
                              [contents, shards](const std::string& dir) -> absl::Status {
                                const std::string shards_dir = dir + "/" + kOptimizerShardsDir;
                                if (contents) TAOPD_RETURN_IF_ERROR(contents->Write(dir));
                                if (!shards) return absl::OkStatus();
                                TAOPD_RETURN_IF_ERROR(MakeDirectories(shards_dir));
                                return shards->Write(shards_dir);
                              });
  return absl::OkStatus();
}

std::optional<SavedBeside> CheckpointedRun::TakeSavedBeside(bool waits) {
  if (beside_ == nullptr || !beside_->IsDone(waits)) return std::nullopt;
  SavedBeside saved = beside_->result();
  beside_.reset();
  return saved;
}

void CheckpointedRun::WaitForSave() {
  if (beside_ != nullptr) beside_->IsDone(/*waits=*/true);
}

void CheckpointedRun::SetRecordSizes() {
  state_.metrics_bytes = output_->metrics_bytes();
  state_.samples_bytes = output_->samples_bytes();
}

void CheckpointedRun::Pin(std::set<int64_t> steps) {
  WaitForSave();
  if (store_ != nullptr) store_->Pin(std::move(steps));
}

std::optional<CommandFailure> CheckpointedRun::Export() {
  const std::string model_dir = options_.run_dir + "/model";
  const absl::Status saved = group_->AgreeOnStatus(
      group_->is_root() ? SaveStudentModel(student_, model_dir) : absl::OkStatus());
  if (!saved.ok()) return CommandFailure{kExitInternal, saved};
  if (!group_->is_root()) return std::nullopt;
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
