#include "trainer/loop/run_lifecycle.h"

#include "common/base/log.h"
#include "common/io/file.h"
#include "common/model/torch_errors.h"

namespace taopd {
namespace {

// The next action, which rank 0 chooses for all ranks.
enum Command : int64_t { kStep = 0, kSave = 1 };
// The kind of save after a step, which rank 0 chooses for all ranks.
enum SaveKind : int64_t { kNoSave = 0, kStartSave = 1, kSaveNow = 2 };

// The end of a wait for storage; the largest of all ranks counts.
enum StorageWait : int64_t { kRetry = 0, kGiveUp = 1, kDeviceLost = 2 };

// The pause between two attempts to write to a full disk.
constexpr absl::Duration kStoragePause = absl::Seconds(1);

}  // namespace

absl::Status RunLifecycle::Restore(const TrainConfig& config, const Shares& shares) {
  const std::string dir = run_.checkpoint_dir();
  if (dir.empty()) return absl::OkStatus();
  SetPending(nullptr);
  if (const std::string left = dir + "/" + kPendingDir; FileExists(left)) {
    TAOPD_ASSIGN_OR_RETURN(const std::vector<std::string> changed,
                           BadData(run_.ChangedSinceCheckpoint()));
    TAOPD_ASSIGN_OR_RETURN(
        PendingStep pending,
        BadData(ReadPendingStep(left, config, shares, group_.is_root(), changed)));
    SetPending(std::make_shared<const PendingStep>(std::move(pending)));
  }
  return absl::OkStatus();
}

void RunLifecycle::ShowBegin() {
  run_control_.Update([&](RunStatus& status) {
    status.run_name = run_.options().name;
    status.total_steps = run_.options().total_steps;
    status.step = run_.state().step;
    status.phase = TrainerPhase::kRunning;
    if (!run_.resumed()) return;
    status.last_checkpoint = run_.resumed_from();
    status.saved_step = status.step;
  });
}

void RunLifecycle::ShowStep(const Metrics& metrics) {
  step_time_.Add(metrics);
  const int64_t step = run_.state().step;
  run_control_.Update([&](RunStatus& status) {
    status.step = step;
    status.metrics = metrics;
    status.eta_seconds =
        absl::ToDoubleSeconds(step_time_.Mean() * (run_.options().total_steps - step));
  });
}

absl::StatusOr<bool> RunLifecycle::WaitForNextStep() {
  if (group_.is_root()) {
    // Save requests during the pause are carried out immediately, because no step is in progress.
    const auto save = [this] {
      if (group_.AgreeOnLargest(kSave).ok()) Save().IgnoreError();
    };
    const bool is_paused = run_control_.WaitWhilePaused(save, wall_time_.EndOfPause());
    if (is_paused || wall_time_.IsUp(absl::Now())) {
      LogInfo("stopping: trainer.max_wall_time_s has no room for one more step",
              {{"step", run_.state().step},
               {"max_wall_time_s", absl::ToDoubleSeconds(options_.wall_time_limit)}});
      run_control_.RequestStop(kExitStoppedByUser);
    }
    TAOPD_RETURN_IF_ERROR(group_.AgreeOnLargest(kStep).status());
  } else {
    int64_t command = kStep;
    do {
      TAOPD_ASSIGN_OR_RETURN(command, group_.AgreeOnLargest(kStep));
      if (command == kSave) Save().IgnoreError();
    } while (command == kSave);
  }
  // A signal may have reached any rank.
  TAOPD_ASSIGN_OR_RETURN(const int64_t code, group_.AgreeOnLargest(run_control_.stop_code()));
  return code != kExitOk;
}

absl::Status RunLifecycle::SaveIfDue(int64_t save_every) {
  // A save may have failed on some ranks only, so each rank asks for its own again.
  SaveKind own_request = last_save_failed_ ? kSaveNow : kNoSave;
  if (group_.is_root()) {
    if (run_control_.TakeSaveRequest()) own_request = kSaveNow;
    if (own_request == kNoSave && save_interval_.IsDue(absl::Now())) own_request = kStartSave;
  }
  TAOPD_ASSIGN_OR_RETURN(const int64_t request,
                         WithExitCode(kExitUnavailable, group_.AgreeOnLargest(own_request)));
  if (run_.is_last()) return SaveUntilStored();
  if (request == kSaveNow) {
    Save().IgnoreError();
  } else if (request == kStartSave || run_.is_due(save_every)) {
    StartSave();
  }
  return absl::OkStatus();
}

absl::Status RunLifecycle::Prepare() {
  RecordFinishedSave(/*waits=*/true);
  if (prepare_) TAOPD_RETURN_IF_ERROR(prepare_());
  kept_.Pin();
  return absl::OkStatus();
}

absl::Status RunLifecycle::InSavingPhase(const std::function<absl::Status()>& save) {
  const absl::Time start = absl::Now();
  // A run that waits for storage stays in that phase, in which a stop request abandons the state.
  const TrainerPhase before = run_control_.status().phase;
  if (before != TrainerPhase::kWaitingForStorage) run_control_.SetPhase(TrainerPhase::kSaving);
  run_control_.Progress();
  const absl::Status saved = save();
  run_control_.Progress();
  run_control_.SetPhase(before);
  wall_time_.ObserveSave(absl::Now() - start);
  save_time_ += absl::Now() - start;
  if (options_.trace != nullptr) options_.trace->Add("save", start);
  return saved;
}

void RunLifecycle::StartSave() {
  const int64_t limit_bytes = options_.memory != nullptr ? options_.memory->copy_limit_bytes : 0;
  const bool has_room = CheckpointCopyBytes(run_.student()) <= limit_bytes;
  // A single rank without memory prevents the copy.
  if (group_.AgreeOnLargest(has_room ? 0 : 1).value_or(1) > 0) {
    Save().IgnoreError();
    return;
  }
  const absl::Status begun = InSavingPhase([this]() -> absl::Status {
    TAOPD_RETURN_IF_ERROR(Prepare());
    return checkpoints_.StartSave();
  });
  if (!begun.ok()) {
    LogWarning("the checkpoint is written before the next step", {{"error", begun}});
    Save().IgnoreError();
    return;
  }
  is_saved_or_saving_ = true;
  save_interval_.Saved(absl::Now());
  kept_.Add(run_.state().step);
}

void RunLifecycle::RecordFinishedSave(bool waits) {
  const std::optional<SaveResult> saved = checkpoints_.TakeFinishedSave(waits);
  if (!saved) return;
  wall_time_.ObserveSave(saved->duration);
  if (saved->path.ok()) {
    RecordSaved(saved->step, *saved->path);
    return;
  }
  ReportFailure(saved->path.status());
  if (saved->step == run_.state().step) is_saved_or_saving_ = false;
  kept_.Remove(saved->step);
}

bool RunLifecycle::WaitUntilSaved() {
  const absl::Time start = absl::Now();
  RecordFinishedSave(/*waits=*/true);
  save_time_ += absl::Now() - start;
  return is_saved_or_saving_;
}

void RunLifecycle::RecordSaved(int64_t step, const std::string& path) {
  last_save_failed_ = false;
  run_control_.Update([&](RunStatus& status) {
    status.last_checkpoint = path;
    status.storage_problem.clear();
    status.saved_step = step;
  });
}

void RunLifecycle::ReportFailure(const absl::Status& status) {
  last_save_failed_ = true;
  if (group_.is_root()) {
    LogWarning("the weights stay in memory; the save is tried again after each step",
               {{"step", run_.state().step},
                {"saved_step", checkpoints_.newest_saved_step()},
                {"failed_saves", checkpoints_.num_failed_saves()},
                {"error", status}});
  }
  run_control_.Update([&](RunStatus& run) { run.storage_problem = std::string(status.message()); });
}

absl::Status RunLifecycle::SaveUntilStored() {
  if (WaitUntilSaved()) return absl::OkStatus();
  // Waiting does not help if rollouts that the checkpoint needs have failed.
  TAOPD_RETURN_IF_ERROR(InSavingPhase([this] { return Prepare(); }));
  return RetryUntilStored(Concat("the checkpoint of step ", run_.state().step),
                          [this] { return InSavingPhase([this] { return Write(); }); });
}

absl::Status RunLifecycle::RetryUntilStored(const std::string& what,
                                            const std::function<absl::Status()>& attempt) {
  absl::Status stored = attempt();
  if (stored.ok()) return absl::OkStatus();
  const int64_t saved_step = checkpoints_.newest_saved_step();
  const std::string saved = saved_step < 0
                                ? std::string("nothing is saved")
                                : Concat("nothing newer than step ", saved_step, " is saved");
  const TrainerPhase phase = run_control_.status().phase;
  run_control_.Update([&](RunStatus& status) {
    status.phase = TrainerPhase::kWaitingForStorage;
    status.storage_problem = std::string(stored.message());
  });
  if (group_.is_root()) {
    LogError(
        "the run waits until it can write its state: make room, and it continues by itself; "
        "POST /stop or a signal ends it without writing",
        {{"dir", run_.run_dir()}, {"what", what}, {"saved", saved}, {"error", stored}});
  }
  while (!stored.ok()) {
    run_control_.Progress();  // a long wait is no stall
    StorageWait own_end = run_control_.WaitForGiveUp(kStoragePause) ? kGiveUp : kRetry;
    if (CudaDeviceIsLost()) own_end = kDeviceLost;  // its tensors can never be written
    TAOPD_ASSIGN_OR_RETURN(const int64_t end,
                           WithExitCode(kExitUnavailable, group_.AgreeOnLargest(own_end)));
    if (end == kDeviceLost) return WithExitCode(kExitInternal, stored);
    if (end == kGiveUp)
      return WithExitCode(kExitStorage, Annotate(stored, Concat(what, " is given up; ", saved)));
    stored = attempt();
  }
  run_control_.Update([&](RunStatus& status) {
    status.phase = phase;
    status.storage_problem.clear();
  });
  if (group_.is_root()) LogInfo("written after a wait for disk space", {{"what", what}});
  return absl::OkStatus();
}

absl::Status RunLifecycle::Save() {
  const absl::Status saved = InSavingPhase([this]() -> absl::Status {
    TAOPD_RETURN_IF_ERROR(Prepare());
    return Write();
  });
  if (!saved.ok()) ReportFailure(saved);
  return saved;
}

absl::Status RunLifecycle::Write() {
  const absl::StatusOr<std::string> saved = checkpoints_.Save();
  is_saved_or_saving_ = saved.ok();
  if (!saved.ok()) return WithExitCode(kExitStorage, saved.status());
  kept_.Add(run_.state().step);
  save_interval_.Saved(absl::Now());
  RecordSaved(run_.state().step, *saved);
  return absl::OkStatus();
}

void RunLifecycle::SetPending(std::shared_ptr<const PendingStep> pending) {
  pending_ = std::move(pending);
  if (pending_ == nullptr) return checkpoints_.SetPending(0, nullptr);
  MarkChanged();
  checkpoints_.SetPending(pending_->mini_batch, [this](const std::string& dir) {
    return WritePendingStep(*pending_, group_.rank(), dir + "/" + kPendingDir);
  });
}

absl::Status RunLifecycle::EndFinished() {
  TAOPD_RETURN_IF_ERROR(RetryUntilStored("the model", [this] { return run_.Export(); }));
  run_control_.SetPhase(TrainerPhase::kFinished);
  return absl::OkStatus();
}

absl::Status RunLifecycle::EndStopped() {
  if (options_.service_manager != nullptr) options_.service_manager->Stopping();
  run_control_.SetPhase(TrainerPhase::kStopping);
  TAOPD_RETURN_IF_ERROR(SaveUntilStored());
  TAOPD_ASSIGN_OR_RETURN(
      const int64_t code,
      WithExitCode(kExitUnavailable, group_.AgreeOnLargest(run_control_.stop_code())));
  return run_.Stopped(static_cast<ExitCode>(code));
}

absl::Status RunLifecycle::EndFailed(const absl::Status& failure) {
  TAOPD_RETURN_IF_ERROR(SaveUntilStored());
  return failure;
}

absl::Status RunLifecycle::EndOutOfMemory(const std::string& where, const std::string& what,
                                          bool saves) {
  run_.student().optimizer->ClearGradients();
  const std::string saved = saves && SaveUntilStored().ok()
                                ? Concat("the state after step ", run_.state().step, " is saved")
                                : "the newest checkpoint is intact";
  const std::string plan =
      options_.memory != nullptr ? Concat(" The plan was:\n", options_.memory->table) : "";
  return WithExitCode(
      kExitOutOfMemory,
      ResourceExhausted(where, ": out of memory: ", what.substr(0, what.find('\n')), "; ", saved,
                        ". Lower trainer.micro_batch_tokens, rollout.kv_cache_gb or "
                        "trainer.head_workspace_mb and continue with --resume.",
                        plan));
}

}  // namespace taopd
