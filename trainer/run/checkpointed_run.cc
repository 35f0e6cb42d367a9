#include "trainer/run/checkpointed_run.h"

#include <utility>

#include "common/base/log.h"
#include "common/io/disk_space.h"
#include "common/io/file.h"
#include "trainer/checkpoint/manifest.h"

namespace taopd {
namespace {

constexpr char kIdentityFile[] = "identity.json";
// Tells report and track that RUN_DIR/model is not the end of the run.
constexpr char kContinuedFile[] = "/continued";

// Returns the facts that a checkpoint records; empty if it has no record.
absl::StatusOr<RunFacts> ReadIdentity(const std::string& checkpoint_dir) {
  const std::string path = checkpoint_dir + "/" + kIdentityFile;
  if (!FileExists(path)) return RunFacts();
  return ReadRunFacts(path);
}

}  // namespace

absl::StatusOr<std::string> CheckpointedRun::OpenDirectory(const StartMode& mode) {
  if (mode.dry_run) {
    TAOPD_RETURN_IF_ERROR(RunDirectory::Check(options_.run_dir, mode));
    return "";
  }
  TAOPD_ASSIGN_OR_RETURN(directory_,
                         RunDirectory::Open(options_.run_dir, mode, options_.checkpoints));
  return directory_->checkpoint() ? directory_->checkpoint()->path : "";
}

absl::Status CheckpointedRun::Start(const StartMode& mode, const StudentSource& source) {
  absl::StatusOr<std::string> checkpoint = group_->is_root() ? OpenDirectory(mode) : "";
  if (const absl::Status opened = group_->AgreeOnStatus(checkpoint.status()); !opened.ok()) {
    return absl::IsDataLoss(opened) ? BadData(opened) : BadUsage(opened);
  }
  TAOPD_ASSIGN_OR_RETURN(resumed_from_, BadUsage(group_->BroadcastText(*checkpoint, 0)));
  allow_change_ = mode.allow_change;
  checkpoints_.SetFile("config.yaml", options_.config_yaml);
  checkpoints_.SetFile(kIdentityFile, WriteRunFacts(options_.settings));
  if (resumed()) {
    settings_check_ = group_->AgreeOnStatus(group_->is_root() ? CheckSettings() : absl::OkStatus());
    // CheckFacts names settings that differ together with facts that do.
    if (absl::IsDataLoss(settings_check_)) return BadData(settings_check_);
    if (!settings_check_.ok() && !absl::IsInvalidArgument(settings_check_))
      return BadUsage(settings_check_);
  }
  AdamWOptions shard;
  shard.layout.num_shards = group_->world_size();
  shard.shard = group_->rank();
  shard.shard_gradients = source.shards_gradients;
  shard.keeps_average = options_.keeps_average;
  auto student = resumed() ? LoadStudent(resumed_from() + "/model", options_.dtype, options_.device,
                                         &options_.optimizer, "", shard, options_.lora)
                           : source.make(shard);
  if (const absl::Status loaded = group_->AgreeOnStatus(student.status()); !loaded.ok()) {
    return WithChangedSettings(BadModel(Annotate(loaded, source.setting)));
  }
  student_ = *std::move(student);
  if (!resumed()) return absl::OkStatus();
  auto restored = LoadCheckpointState(resumed_from(), &student_);
  if (const absl::Status read = group_->AgreeOnStatus(restored.status()); !read.ok()) {
    return WithChangedSettings(BadData(read));
  }
  state_ = *restored;
  checkpoint_dir_ = resumed_from();
  checkpoints_.NoteLoadedCheckpoint();
  return absl::OkStatus();
}

absl::Status CheckpointedRun::CheckSettings() const {
  TAOPD_ASSIGN_OR_RETURN(const RunFacts recorded, ReadIdentity(resumed_from()));
  if (recorded.empty()) {
    LogWarning("the checkpoint does not record its run's settings: they are not compared",
               {{"path", resumed_from()}});
    return absl::OkStatus();
  }
  std::vector<std::string> known;
  for (const RunFact& fact : recorded) known.push_back(fact.name);
  for (const RunFact& fact : options_.settings) known.push_back(fact.name);
  // The code is not INVALID_ARGUMENT, which stands for settings that differ.
  if (const absl::Status names = CheckAllowedNames(allow_change_, known); !names.ok())
    return FailedPrecondition(names.message());
  return CheckResume(recorded, options_.settings, allow_change_);
}

absl::Status CheckpointedRun::CheckFacts(const RunFacts& facts) {
  identity_.insert(identity_.end(), facts.begin(), facts.end());
  checkpoints_.SetFile(kIdentityFile, WriteRunFacts(identity_));
  if (!resumed()) return absl::OkStatus();
  const absl::Status same = group_->AgreeOnStatus(CheckRecordedFacts(facts));
  if (same.ok() && settings_check_.ok()) return absl::OkStatus();
  if (same.ok()) return BadUsage(settings_check_);
  return WithChangedSettings(absl::IsInvalidArgument(same) ? BadUsage(same) : BadData(same));
}

absl::Status CheckpointedRun::WithChangedSettings(const absl::Status& failure) const {
  if (settings_check_.ok() || IsRankLost(failure)) return failure;
  return BadUsage(InvalidArgument(settings_check_.message(), "\n", failure.message()));
}

absl::Status CheckpointedRun::CheckRecordedFacts(const RunFacts& facts) const {
  TAOPD_ASSIGN_OR_RETURN(const RunFacts recorded, ReadIdentity(resumed_from()));
  return CheckResume(recorded, facts, allow_change_);
}

absl::StatusOr<std::vector<std::string>> CheckpointedRun::ChangedSinceCheckpoint() const {
  std::vector<std::string> names;
  if (checkpoint_dir_.empty()) return names;
  TAOPD_ASSIGN_OR_RETURN(const RunFacts recorded, ReadIdentity(checkpoint_dir_));
  for (const FactChange& change : ChangesSince(recorded, identity_)) names.push_back(change.name);
  return names;
}

absl::Status CheckpointedRun::OpenOutput() {
  TAOPD_RETURN_IF_ERROR(CheckDisk());
  const bool is_root = group_->is_root();
  absl::Status opened = group_->AgreeOnStatus(is_root ? ReplaceOldRun() : absl::OkStatus());
  if (opened.ok()) opened = records_.Open(state_, /*continues=*/resumed());
  if (opened.ok()) {
    // This comes last: from here on the new run has replaced the old one.
    opened = group_->AgreeOnStatus(
        is_root ? WriteFileAtomically(options_.run_dir + "/config.yaml", options_.config_yaml)
                : absl::OkStatus());
  }
  if (!opened.ok()) {
    return WithExitCode(absl::IsResourceExhausted(opened) ? kExitStorage : kExitInternal, opened);
  }
  if (directory_) directory_->DeleteOldRun();
  return absl::OkStatus();
}

absl::Status CheckpointedRun::ReplaceOldRun() {
  if (!resumed()) {
    TAOPD_RETURN_IF_ERROR(directory_->MoveOldRunAside());
  } else if (FileExists(options_.run_dir + "/model")) {
    TAOPD_RETURN_IF_ERROR(WriteFileAtomically(options_.run_dir + kContinuedFile, ""));
  }
  TAOPD_ASSIGN_OR_RETURN(CheckpointStore * store, directory_->Checkpoints());
  checkpoints_.SetStore(store);
  return absl::OkStatus();
}

absl::StatusOr<bool> CheckpointedRun::IsExported() const {
  bool is_exported = false;
  if (group_->is_root() && resumed()) {
    const auto manifest = ReadManifest(resumed_from(), state_.step);
    is_exported =
        manifest.ok() && VerifyFiles(*manifest, "model/", options_.run_dir, /*hashes=*/true).ok();
  }
  TAOPD_ASSIGN_OR_RETURN(const int64_t agreed, group_->AgreeOnLargest(is_exported ? 1 : 0));
  return agreed > 0;
}

absl::Status CheckpointedRun::CheckDisk() {
  const std::vector<NamedParameter> trained = student_.decoder->TrainedParameters();
  DiskUse use = {.checkpoints = options_.checkpoints,
                 .max_pinned = options_.max_pinned,
                 .total_steps = options_.total_steps,
                 .num_published = options_.num_published,
                 .run_dir = options_.run_dir,
                 .weights_dir = options_.weights_dir};
  for (const auto& [name, parameter] : trained) {
    const bool is_float = parameter.scalar_type() == at::kFloat;
    use.weight_bytes += static_cast<int64_t>(parameter.nbytes());
    use.state_bytes += parameter.numel() * (options_.optimizer.StateBytesPerParameter(is_float) +
                                            (options_.keeps_average ? 4 : 0));
  }
  const LoraConfig* const lora = student_.decoder->lora();
  if (lora != nullptr && lora->ensure_weight_tying) {
    use.weight_bytes += static_cast<int64_t>(student_.decoder->lm_head().nbytes());
  }
  DiskPlan plan = PlanDisk(use);
  checkpoints_.SetSizes(plan.checkpoint_bytes, plan.model_bytes);
  absl::Status fits;
  const std::optional<int64_t> free_bytes = FreeDiskBytes(options_.run_dir);
  if (group_->is_root() && free_bytes && options_.disk_plan != PlanPolicy::kOff) {
    const int64_t present_bytes =
        BytesOnDisk(options_.run_dir + "/checkpoints") + BytesOnDisk(options_.run_dir + "/model");
    if (resumed()) plan.held_bytes = present_bytes;
    const bool keeps_old_run = directory_ && directory_->keeps_old_run();
    if (!resumed() && !keeps_old_run) plan.freed_bytes = present_bytes;
    plan.freed_bytes += PublishedBytesIn(options_.run_dir);
    const bool refuses = options_.disk_plan == PlanPolicy::kRefuse;
    fits = CheckDiskPlan(plan, options_.run_dir, *free_bytes, refuses);
    const auto free_for_weights =
        plan.weights_dir.empty() ? std::nullopt : FreeDiskBytes(plan.weights_dir);
    if (fits.ok() && free_for_weights) fits = CheckWeightsDisk(plan, *free_for_weights, refuses);
  }
  return WithExitCode(kExitStorage, group_->AgreeOnStatus(fits));
}

absl::StatusOr<std::string> CheckpointedRun::RollBack(
    int64_t step, const std::function<absl::Status(int64_t to_step)>& begin) {
  TAOPD_ASSIGN_OR_RETURN(const CheckpointRef to, checkpoints_.FindNewest(step));
  if (begin) TAOPD_RETURN_IF_ERROR(begin(to.step));
  TAOPD_RETURN_IF_ERROR(
      group_->AgreeOnStatus(ReloadWeights(to.path + "/model", student_.decoder.get())));
  auto restored = LoadCheckpointState(to.path, &student_);
  TAOPD_RETURN_IF_ERROR(group_->AgreeOnStatus(restored.status()));
  TAOPD_RETURN_IF_ERROR(checkpoints_.DeleteAfter(to.step));
  state_ = *restored;
  checkpoint_dir_ = to.path;
  checkpoints_.NoteLoadedCheckpoint();
  TAOPD_RETURN_IF_ERROR(records_.Open(state_, /*continues=*/true));
  return to.path;
}

absl::Status CheckpointedRun::Export() {
  TAOPD_RETURN_IF_ERROR(checkpoints_.ExportModel());
  output().Sync();
  if (!group_->is_root()) return absl::OkStatus();
  RemoveContinuedFile();
  LogInfo("finished", {{"run", options_.name},
                       {"steps", state_.step},
                       {"train_seconds", state_.train_seconds},
                       {"model", options_.run_dir + "/model"}});
  return absl::OkStatus();
}

void CheckpointedRun::LeaveFinished() {
  if (!group_->is_root()) return;
  RemoveContinuedFile();  // a continuation may have ended before its first checkpoint
  LogInfo(
      "the run is finished and stays as it is",
      {{"dir", options_.run_dir}, {"step", state_.step}, {"model", options_.run_dir + "/model"}});
}

void CheckpointedRun::RemoveContinuedFile() const {
  const absl::Status removed = RemoveAll(options_.run_dir + kContinuedFile);
  if (!removed.ok()) LogWarning("a file is left", {{"error", std::string(removed.message())}});
}

absl::Status CheckpointedRun::Stopped(ExitCode code) const {
  const int64_t mini_batches = checkpoints_.pending_mini_batches();
  const std::string within =
      mini_batches > 0 ? Concat(" and ", mini_batches, " mini-batches of the next") : "";
  return WithExitCode(code, absl::CancelledError(Concat("asked to stop after step ", state_.step,
                                                        within, "; continue with --resume")));
}

}  // namespace taopd
