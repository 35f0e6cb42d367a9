#include "trainer/run/checkpointed_run.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/io/disk_space.h"
#include "common/io/file.h"
#include "common/model/out_of_memory.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/dist/optimizer_shards.h"

namespace taopd {
namespace {

// Numbers, booleans and texts keep their type; lists, and auto among numbers, become text.
Hparams HparamsOf(const RunFacts& settings) {
  Hparams hparams;
  for (const RunFact& setting : settings) {
    const auto value = nlohmann::json::parse(setting.value, nullptr, /*allow_exceptions=*/false);
    if (value.is_boolean()) {
      hparams.emplace_back(setting.name, value.get<bool>());
    } else if (value.is_number()) {
      hparams.emplace_back(setting.name, value.get<double>());
    } else if (value.is_string()) {
      hparams.emplace_back(setting.name, value.get<std::string>());
    } else {
      hparams.emplace_back(setting.name, setting.value);
    }
  }
  return hparams;
}

}  // namespace

CheckpointedRun::CheckpointedRun(CheckpointedRunOptions options)
    : options_(std::move(options)),
      alone_(ProcessGroup::Alone()),
      group_(options_.group != nullptr ? options_.group : alone_.get()),
      attempts_(options_.run_dir) {}

AdamWOptions CheckpointedRun::optimizer_shard() const {
  AdamWOptions options;
  options.layout.num_shards = group_->world_size();
  options.shard = group_->rank();
  options.shard_gradients = shard_gradients_;
  options.keeps_average = options_.keeps_average;
  return options;
}

absl::StatusOr<std::string> CheckpointedRun::FromRoot(const absl::StatusOr<std::string>& text) {
  TAOPD_RETURN_IF_ERROR(group_->AgreeOnStatus(text.status()));
  return group_->BroadcastText(text.value_or(""), 0);
}

absl::Status CheckpointedRun::Start(const StartMode& mode, const std::string& setting,
                                    const std::function<absl::StatusOr<Student>()>& make_student) {
  absl::StatusOr<std::string> checkpoint = "";
  if (group_->is_root() && mode.dry_run) {
    if (absl::Status checked = RunDirectory::Check(options_.run_dir, mode); !checked.ok())
      checkpoint = checked;
  } else if (group_->is_root()) {
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
    settings_ = group_->AgreeOnStatus(group_->is_root() ? CheckSettings() : absl::OkStatus());
    // Settings that differ are named together with the facts that do.
    if (absl::IsDataLoss(settings_)) return BadData(settings_);
    if (!settings_.ok() && !absl::IsInvalidArgument(settings_)) return BadUsage(settings_);
  }
  auto student = resumed() ? LoadStudent(resumed_from() + "/model", options_.dtype, options_.device,
                                         &options_.optimizer, "", optimizer_shard(), options_.lora)
                           : make_student();
  if (const absl::Status loaded = group_->AgreeOnStatus(student.status()); !loaded.ok()) {
    return BesideChanges(BadModel(Annotate(loaded, setting)));
  }
  student_ = *std::move(student);
  if (!resumed()) return absl::OkStatus();
  auto restored = LoadCheckpointState(resumed_from(), &student_);
  if (const absl::Status read = group_->AgreeOnStatus(restored.status()); !read.ok()) {
    return BesideChanges(BadData(read));
  }
  state_ = *restored;
  checkpoint_dir_ = resumed_from();
  newest_saved_step_ = state_.step;
  return absl::OkStatus();
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
  // The code is not INVALID_ARGUMENT, which stands for settings that differ.
  if (const absl::Status names = CheckAllowedNames(allow_change_, known); !names.ok())
    return FailedPrecondition(std::string(names.message()));
  return CheckResume(recorded, options_.settings, allow_change_);
}

absl::Status CheckpointedRun::CheckFacts(const RunFacts& facts) {
  RunFacts all = options_.settings;
  all.insert(all.end(), facts.begin(), facts.end());
  text_files_["identity.json"] = WriteRunFacts(all);
  if (!resumed()) return absl::OkStatus();
  const absl::Status same = group_->AgreeOnStatus(CheckRecordedFacts(facts));
  if (same.ok() && settings_.ok()) return absl::OkStatus();
  if (same.ok()) return BadUsage(settings_);
  return BesideChanges(absl::IsInvalidArgument(same) ? BadUsage(same) : BadData(same));
}

absl::Status CheckpointedRun::BesideChanges(const absl::Status& failure) const {
  if (settings_.ok()) return failure;
  return BadUsage(
      InvalidArgument(std::string(settings_.message()), "\n", std::string(failure.message())));
}

absl::Status CheckpointedRun::CheckRecordedFacts(const RunFacts& facts) const {
  const std::string path = resumed_from() + "/identity.json";
  if (!FileExists(path)) return absl::OkStatus();
  TAOPD_ASSIGN_OR_RETURN(const RunFacts recorded, ReadRunFacts(path));
  return CheckResume(recorded, facts, allow_change_);
}

absl::Status CheckpointedRun::OpenOutput() {
  TAOPD_RETURN_IF_ERROR(CheckDisk());
  absl::Status opened = group_->is_root() ? ReplaceAndOpen() : absl::OkStatus();
  opened = group_->AgreeOnStatus(opened);
  // Rank 0 has cut the records of a resumed run.
  if (opened.ok() && !group_->is_root()) {
    opened = OpenRecords(resumed() ? state_.step : -1);
  }
  if (opened.ok()) opened = group_->AgreeOnStatus(opened);
  if (!opened.ok()) {
    return WithExitCode(absl::IsResourceExhausted(opened) ? kExitStorage : kExitInternal, opened);
  }
  if (directory_) directory_->DeleteOldRun();
  return absl::OkStatus();
}

absl::StatusOr<RecordedMetrics> CheckpointedRun::ReadRecords() {
  TAOPD_ASSIGN_OR_RETURN(records_read_,
                         ReadRecordedMetrics(options_.run_dir, state_.step, state_.metrics_bytes,
                                             state_.samples_bytes, options_.watched_metric));
  return *records_read_;
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
  checkpoint_bytes_ = plan.checkpoint_bytes;
  model_bytes_ = plan.model_bytes;
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

absl::Status CheckpointedRun::ReplaceAndOpen() {
  if (!resumed()) TAOPD_RETURN_IF_ERROR(directory_->MoveOldRunAside());
  TAOPD_ASSIGN_OR_RETURN(store_, directory_->Checkpoints());
  TAOPD_RETURN_IF_ERROR(OpenRecords(resumed() ? state_.step : -1));
  // This comes last: from here on the new run has replaced the old one.
  return WriteFileAtomically(options_.run_dir + "/config.yaml", options_.config_yaml);
}

absl::Status CheckpointedRun::OpenRecords(int64_t resume_step) {
  RunOutputOptions options;
  options.run_dir = options_.run_dir;
  options.total_steps = options_.total_steps;
  options.settings = HparamsOf(options_.settings);
  if (resume_step >= 0) {
    if (!records_read_) TAOPD_RETURN_IF_ERROR(ReadRecords().status());
    recorded_ = *std::exchange(records_read_, std::nullopt);
    if (group_->is_root()) {
      TAOPD_RETURN_IF_ERROR(KeepLaterRecords(options_.run_dir, &recorded_));
    }
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

absl::StatusOr<CheckpointRef> CheckpointedRun::FindForRollBack(int64_t step) {
  WaitForSave();
  absl::StatusOr<std::optional<CheckpointRef>> found = std::nullopt;
  if (group_->is_root()) {
    found = store_->Newest(step);
    if (found.ok() && !*found)
      found = NotFound("there is no checkpoint of at most ", step, " steps");
  }
  TAOPD_RETURN_IF_ERROR(group_->AgreeOnStatus(found.status()));
  CheckpointRef to = (*found).value_or(CheckpointRef());
  TAOPD_ASSIGN_OR_RETURN(to.step, group_->AgreeOnLargest(to.step));
  TAOPD_ASSIGN_OR_RETURN(to.path, group_->BroadcastText(to.path, 0));
  return to;
}

absl::StatusOr<bool> CheckpointedRun::HasCheckpoint(int64_t step) {
  TAOPD_ASSIGN_OR_RETURN(const std::string path, FindCheckpoint(step));
  return !path.empty();
}

absl::StatusOr<std::string> CheckpointedRun::FindCheckpoint(int64_t step) {
  WaitForSave();
  std::string path;
  if (group_->is_root() && store_ != nullptr) {
    const auto all = store_->List();
    for (const CheckpointRef& ref : all.value_or(std::vector<CheckpointRef>())) {
      if (ref.step == step && ref.mini_batch == 0 &&
          VerifyCheckpoint(ref.path, step, /*hashes=*/false).ok()) {
        path = ref.path;
      }
    }
  }
  return group_->BroadcastText(path, 0);
}

absl::StatusOr<std::string> CheckpointedRun::RollBack(
    int64_t step, const std::function<absl::Status(int64_t to_step)>& begin) {
  TAOPD_ASSIGN_OR_RETURN(const CheckpointRef to, FindForRollBack(step));
  if (begin) TAOPD_RETURN_IF_ERROR(begin(to.step));
  TAOPD_RETURN_IF_ERROR(
      group_->AgreeOnStatus(ReloadWeights(to.path + "/model", student_.decoder.get())));
  auto restored = LoadCheckpointState(to.path, &student_);
  TAOPD_RETURN_IF_ERROR(group_->AgreeOnStatus(restored.status()));
  TAOPD_RETURN_IF_ERROR(
      group_->AgreeOnStatus(group_->is_root() ? store_->DeleteAfter(to.step) : absl::OkStatus()));
  state_ = *restored;
  checkpoint_dir_ = to.path;
  newest_saved_step_ = to.step;
  std::unique_ptr<RunOutput> before = std::move(output_);
  absl::Status opened = group_->is_root() ? OpenRecords(state_.step) : absl::OkStatus();
  opened = group_->AgreeOnStatus(opened);
  if (opened.ok() && !group_->is_root()) opened = OpenRecords(state_.step);
  if (opened.ok()) opened = group_->AgreeOnStatus(opened);
  if (!opened.ok()) {
    output_ = std::move(before);  // the old output may still be in use
    return opened;
  }
  closed_outputs_.push_back(std::move(before));
  return to.path;
}

absl::Status CheckpointedRun::SaveParts(const std::string& dir) {
  absl::Status status;
  // Exceptions are caught, because the other ranks wait for this one's result.
  try {
    if (group_->is_root()) {
      status = CheckpointContents(student_, state_, text_files_, /*copies=*/false).Write(dir);
    }
    if (group_->world_size() > 1) {
      status.Update(OptimizerShardsToWrite(*student_.optimizer, group_->rank(), /*copies=*/false)
                        .Write(dir + "/" + kOptimizerShardsDir));
    }
  } catch (const std::exception& error) {
    status = ResourceExhausted("writing a checkpoint: ", FirstLine(error));
  }
  if (pending_mini_batches_ > 0) status.Update(write_pending_(dir));
  if (write_in_flight_) status.Update(write_in_flight_(dir));
  return group_->AgreeOnStatus(status);
}

absl::StatusOr<std::string> CheckpointedRun::SaveAsRoot() {
  bool has_begun = false;
  const auto write = [&](const std::string& dir) -> absl::Status {
    has_begun = true;
    absl::Status made;
    if (group_->world_size() > 1) made = MakeDirectories(dir + "/" + kOptimizerShardsDir);
    TAOPD_RETURN_IF_ERROR(FromRoot(made.ok() ? absl::StatusOr<std::string>(dir) : made).status());
    return SaveParts(dir);
  };
  const bool may_fit = attempts_.MayFit(checkpoint_bytes_);
  absl::StatusOr<std::string> saved = ResourceExhausted("the checkpoint does not fit");
  if (may_fit) saved = store_->Save(state_.step, write, pending_mini_batches_);
  // The checkpoint exists already, or its directory could not be made, so the other ranks have
  // nothing to do.
  if (!has_begun) TAOPD_RETURN_IF_ERROR(FromRoot("").status());
  if (may_fit) LogSaved(state_.step, saved);
  return saved;
}

absl::StatusOr<std::string> CheckpointedRun::Save() {
  WaitForSave();
  SetRecordSizes();
  absl::StatusOr<std::string> saved = "";
  if (group_->is_root()) {
    saved = SaveAsRoot();
  } else if (auto dir = FromRoot(""); dir.ok() && !dir->empty()) {
    // Rank 0 has the same error and reports it with more details.
    if (absl::Status parts = SaveParts(*dir); !parts.ok()) LogDebug("part not saved");
  }
  return Noted(state_.step, FromRoot(saved));
}

absl::Status CheckpointedRun::StartSave() {
  WaitForSave();
  SetRecordSizes();
  // Used on rank 0, for everything except the ranks' parts of the optimizer.
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
    copied = ResourceExhausted("no copy of the student: ", FirstLine(error));
  }
  TAOPD_RETURN_IF_ERROR(group_->AgreeOnStatus(copied));
  save_in_progress_ = SaveInProgress::Start(
      group_, store_, state_.step,
      [contents, shards, in_flight = write_in_flight_](const std::string& dir) -> absl::Status {
        const std::string shards_dir = dir + "/" + kOptimizerShardsDir;
        if (contents) TAOPD_RETURN_IF_ERROR(contents->Write(dir));
        if (in_flight) TAOPD_RETURN_IF_ERROR(in_flight(dir));
        if (!shards) return absl::OkStatus();
        TAOPD_RETURN_IF_ERROR(MakeDirectories(shards_dir));
        return shards->Write(shards_dir);
      });
  return absl::OkStatus();
}

std::optional<SaveResult> CheckpointedRun::TakeSaved(bool waits) {
  if (save_in_progress_ == nullptr || !save_in_progress_->IsDone(waits)) return std::nullopt;
  SaveResult saved = save_in_progress_->result();
  save_in_progress_.reset();
  saved.path = Noted(saved.step, std::move(saved.path));
  return saved;
}

void CheckpointedRun::WaitForSave() {
  if (save_in_progress_ != nullptr) save_in_progress_->IsDone(/*waits=*/true);
}

void CheckpointedRun::SetRecordSizes() {
  output_->Sync();
  state_.metrics_bytes = output_->metrics_bytes();
  state_.samples_bytes = output_->samples_bytes();
}

void CheckpointedRun::Pin(std::set<int64_t> steps) {
  WaitForSave();
  if (store_ != nullptr) store_->Pin(std::move(steps));
}

absl::StatusOr<std::string> CheckpointedRun::Noted(int64_t step,
                                                   absl::StatusOr<std::string> saved) {
  if (!saved.ok()) return attempts_.Failed(checkpoint_bytes_, saved.status());
  attempts_.Succeeded();
  newest_saved_step_ = step;
  return saved;
}

absl::Status CheckpointedRun::ExportAsRoot() {
  const auto save = [this](const std::string& dir) { return SaveStudentModel(student_, dir); };
  absl::Status written = ResourceExhausted("the model does not fit");
  if (attempts_.MayFit(model_bytes_)) written = ReplaceDirectory(options_.run_dir + "/model", save);
  if (!written.ok()) return attempts_.Failed(model_bytes_, written);
  attempts_.Succeeded();
  return written;
}

absl::Status CheckpointedRun::Export() {
  TAOPD_RETURN_IF_ERROR(
      group_->AgreeOnStatus(group_->is_root() ? ExportAsRoot() : absl::OkStatus()));
  output_->Sync();
  if (!group_->is_root()) return absl::OkStatus();
  LogInfo("finished", {{"run", options_.name},
                       {"steps", state_.step},
                       {"train_seconds", state_.train_seconds},
                       {"model", options_.run_dir + "/model"}});
  return absl::OkStatus();
}

absl::Status CheckpointedRun::Stopped(ExitCode code) const {
  const std::string within = pending_mini_batches_ > 0 ? Concat(" and ", pending_mini_batches_,
                                                                " mini-batches of the next")
                                                       : "";
  return WithExitCode(code, absl::CancelledError(Concat("asked to stop after step ", state_.step,
                                                        within, "; continue with --resume")));
}

}  // namespace taopd
