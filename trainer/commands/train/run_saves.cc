#include "trainer/commands/train/run_saves.h"

#include "common/base/log.h"
#include "common/io/file.h"
#include "trainer/commands/until_stored.h"

namespace taopd {

RunSaves::RunSaves(TrainingParts* parts)
    : parts_(*parts),
      run_(parts->run),
      checkpoints_(parts->run.checkpoints()),
      save_interval_(parts->start, absl::Minutes(parts->config.trainer.save_minutes)) {}

absl::Status RunSaves::Restore() {
  const std::string dir = run_.checkpoint_dir();
  if (dir.empty()) return absl::OkStatus();
  SetPending(nullptr);
  if (const std::string left = dir + "/" + kPendingDir; FileExists(left)) {
    TAOPD_ASSIGN_OR_RETURN(
        PendingStep pending,
        BadData(ReadPendingStep(left, parts_.config, parts_.context.shares, parts_.is_root())));
    SetPending(std::make_shared<const PendingStep>(std::move(pending)));
  }
  newest_ = parts_.state.step;
  last_good_ = -1;
  return absl::OkStatus();
}

absl::Status RunSaves::Prepare() {
  RecordFinishedSave(/*waits=*/true);
  if (prepare_) TAOPD_RETURN_IF_ERROR(prepare_());
  PinAll();
  return absl::OkStatus();
}

void RunSaves::StartSave() {
  const absl::Time start = absl::Now();
  // A single rank without room prevents the copy.
  const bool has_room = CheckpointCopyBytes(parts_.student) <= parts_.memory.copy_limit_bytes;
  const auto without_room = parts_.config.trainer.async_save == AsyncSave::kOff
                                ? absl::StatusOr<int64_t>(1)
                                : parts_.group->AgreeOnLargest(has_room ? 0 : 1);
  if (without_room.value_or(1) > 0) {
    Save().IgnoreError();
    return;
  }
  absl::Status begun = Prepare();
  if (begun.ok()) begun = checkpoints_.StartSave();
  if (!begun.ok()) {
    LogWarning("the checkpoint is written before the next step", {{"error", begun}});
    Save().IgnoreError();
    return;
  }
  is_saved_or_saving_ = true;
  save_interval_.Saved(absl::Now());
  newest_before_ = std::exchange(newest_, parts_.state.step);
  save_time_ += absl::Now() - start;
  parts_.Trace("save", start);
}

void RunSaves::RecordFinishedSave(bool waits) {
  const absl::Time start = absl::Now();
  const std::optional<SaveResult> saved = checkpoints_.TakeFinishedSave(waits);
  if (!saved) return;
  parts_.wall_time.ObserveSave(saved->duration);
  if (saved->path.ok()) {
    parts_.run_state->Update([&](RunStatus& status) {
      status.last_checkpoint = *saved->path;
      status.storage_problem.clear();
      status.saved_step = saved->step;
    });
  } else {
    ReportFailure(saved->path.status());
    if (saved->step == parts_.state.step) is_saved_or_saving_ = false;
    if (last_good_ == saved->step) last_good_ = newest_before_;
    newest_ = newest_before_;
  }
  if (waits) save_time_ += absl::Now() - start;
}

bool RunSaves::WaitUntilSaved() {
  RecordFinishedSave(/*waits=*/true);
  return is_saved_or_saving_;
}

void RunSaves::ReportFailure(const absl::Status& status) {
  if (parts_.is_root()) {
    LogWarning("the weights stay in memory; the save is tried again after each step",
               {{"step", parts_.state.step},
                {"saved_step", checkpoints_.newest_saved_step()},
                {"failed_saves", checkpoints_.num_failed_saves()},
                {"error", status}});
  }
  parts_.run_state->Update(
      [&](RunStatus& run) { run.storage_problem = std::string(status.message()); });
}

absl::Status RunSaves::SaveOrWait() {
  // Waiting does not help if rollouts that the checkpoint needs have failed.
  if (prepare_) TAOPD_RETURN_IF_ERROR(prepare_());
  return UntilStored(Concat("the checkpoint of step ", parts_.state.step), &run_, parts_.run_state,
                     [this] { return Save(); });
}

absl::Status RunSaves::Save() {
  const absl::Time start = absl::Now();
  RunState& run_state = *parts_.run_state;
  // A run that waits for room stays in that phase, in which a stop request abandons the state.
  const TrainerPhase before = run_state.status().phase;
  const bool waits = before == TrainerPhase::kWaitingForStorage;
  if (!waits) run_state.Update([](RunStatus& status) { status.phase = TrainerPhase::kSaving; });
  run_state.Progress();
  const absl::Status prepared = Prepare();
  auto saved = prepared.ok() ? checkpoints_.Save() : absl::StatusOr<std::string>(prepared);
  run_state.Progress();
  is_saved_or_saving_ = saved.ok();
  if (saved.ok()) {
    newest_ = parts_.state.step;
    save_interval_.Saved(absl::Now());
  }
  parts_.wall_time.ObserveSave(absl::Now() - start);
  save_time_ += absl::Now() - start;
  parts_.Trace("save", start);
  run_state.Update([&](RunStatus& status) {
    status.phase = before;
    if (!saved.ok()) return;
    status.last_checkpoint = *saved;
    status.storage_problem.clear();
    status.saved_step = parts_.state.step;
  });
  if (saved.ok()) return absl::OkStatus();
  // Tried once for each step, and more often at the end of a run.
  if (!waits) ReportFailure(saved.status());
  return WithExitCode(kExitStorage, saved.status());
}

void RunSaves::MarkNewestGood() {
  if (newest_ >= 0) last_good_ = newest_;
}

void RunSaves::Pin(int64_t best_step, int64_t named_best_step) {
  best_ = best_step;
  named_best_ = named_best_step;
  PinAll();
}

void RunSaves::PinAll() { checkpoints_.Pin({best_, named_best_, last_good_, evaluated_}); }

void RunSaves::SetPending(std::shared_ptr<const PendingStep> pending) {
  pending_ = std::move(pending);
  if (pending_ == nullptr) return checkpoints_.SetPending(0, nullptr);
  checkpoints_.SetPending(pending_->mini_batch, [this](const std::string& dir) {
    return WritePendingStep(*pending_, parts_.group->rank(), dir + "/" + kPendingDir);
  });
}

absl::Status RunSaves::Stopped() {
  parts_.service.Stopping();
  parts_.run_state->Update([](RunStatus& status) { status.phase = TrainerPhase::kStopping; });
  TAOPD_RETURN_IF_ERROR(SaveOrWait());
  TAOPD_ASSIGN_OR_RETURN(
      const int64_t code,
      WithExitCode(kExitUnavailable, parts_.group->AgreeOnLargest(parts_.run_state->stop_code())));
  return run_.Stopped(static_cast<ExitCode>(code));
}

absl::Status RunSaves::FailSaved(const absl::Status& failure) {
  if (!WaitUntilSaved()) TAOPD_RETURN_IF_ERROR(SaveOrWait());
  return failure;
}

absl::Status RunSaves::OutOfMemory(const TrainState& before, int64_t changes_before,
                                   const std::string& where, const std::string& what) {
  AdamW& optimizer = *parts_.student.optimizer;
  optimizer.ClearGradients();
  std::string saved = "the newest checkpoint is intact";
  // After an update the weights, or their average, are between two steps, so the older checkpoint
  // must suffice. A single rank of several cannot save without the others, which do not know of the
  // failure yet.
  if (optimizer.num_changes() == changes_before && parts_.group->world_size() == 1) {
    parts_.state = before;
    if (SaveOrWait().ok()) saved = Concat("the state after step ", before.step, " is saved");
  }
  return WithExitCode(
      kExitOutOfMemory,
      ResourceExhausted(where, ": out of memory: ", what.substr(0, what.find('\n')), "; ", saved,
                        ". Lower trainer.micro_batch_tokens, rollout.kv_cache_gb or "
                        "trainer.head_workspace_mb and continue with --resume. The plan was:\n",
                        parts_.memory.table));
}

}  // namespace taopd
