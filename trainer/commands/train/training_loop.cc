// The loop of a distillation run over its steps, with checkpoints and the end.
#include <algorithm>

#include "common/base/log.h"
#include "common/io/file.h"
#include "trainer/commands/process.h"
#include "trainer/commands/train/training_run.h"
#include "trainer/commands/until_stored.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/step/kl_probe.h"

namespace taopd {

namespace {

// The next action, which rank 0 chooses for all ranks.
enum Command : int64_t { kStep = 0, kSave = 1 };
// The kind of save after a step, which rank 0 chooses for all ranks.
enum SaveWish : int64_t { kNoSave = 0, kSaveBeside = 1, kSaveNow = 2 };

}  // namespace

absl::Status TrainingRun::Run(const StartMode& mode) {
  TAOPD_RETURN_IF_ERROR(SetUp(mode));
  if (is_untouched_) return absl::OkStatus();
  try {
    return Loop();
  } catch (const std::exception& error) {
    if (!IsOutOfMemory(error)) throw;
    // A step handles its own exceptions, so the state here is that of the end of a step.
    return OutOfMemory(state_, student_.optimizer->num_updates(),
                       Concat("after step ", state_.step), error.what());
  }
}

absl::Status TrainingRun::Loop() {
  // Of a new run the one before the first step; of a resumed one what it did not get to.
  if (evaluation_is_due() && !run_.recorded().has_evaluation) {
    TAOPD_RETURN_IF_ERROR(Evaluate());
  }
  while (!is_finished()) {
    const absl::StatusOr<bool> stops = WaitForNextStep();
    if (!stops.ok()) return WithExitCode(kExitUnavailable, stops.status());
    if (*stops) return Stopped();
    TAOPD_RETURN_IF_ERROR(Step());
  }
  if (!IsSaved()) {
    TAOPD_RETURN_IF_ERROR(SaveOrWait());
  }
  TAOPD_RETURN_IF_ERROR(
      UntilStored("the model", &run_, run_state_, [this] { return run_.Export(); }));
  run_state_->Update([](RunStatus& status) { status.phase = TrainerPhase::kFinished; });
  return absl::OkStatus();
}

absl::Status TrainingRun::Step() {
  const absl::Time start = absl::Now();
  run_state_->Update([](RunStatus& status) { status.phase = TrainerPhase::kRunning; });
  std::vector<const PromptRecord*> batch;
  for (int64_t index : order_->Next(config_.data.train_batch_size))
    batch.push_back(&prompts_[index]);
  TAOPD_ASSIGN_OR_RETURN(const StepResult result, TrainOn(batch));

  ++state_.step;
  has_saved_ = false;
  if (self_teacher_) {
    const absl::Status taken = self_teacher_->StepDone(state_.step);
    if (!taken.ok()) return WithExitCode(kExitUnavailable, taken);
  }
  state_.epoch = order_->epoch();
  state_.epoch_index = order_->index();
  const int64_t num_minis = config_.data.train_batch_size / config_.trainer.mini_batch_size;
  state_.nonfinite_in_a_row =
      result.num_skipped_updates == num_minis ? state_.nonfinite_in_a_row + 1 : 0;
  Metrics metrics = result.metrics;
  MeasureForGuard(result, &metrics);
  wall_time_.StepTook(absl::Now() - start);
  state_.train_seconds += absl::ToDoubleSeconds(absl::Now() - start);
  if (absl::Status reported = Report(result, &metrics); !reported.ok())
    return WithExitCode(kExitUnavailable, reported);
  WriteTimeline();
  if (state_.nonfinite_in_a_row >= config_.trainer.max_nonfinite_steps) {
    return FailSaved(
        WithExitCode(kExitNumerics, Internal("the loss or its gradient was not finite in ",
                                             state_.nonfinite_in_a_row, " steps in a row")));
  }
  TakeSavedBeside(/*waits=*/false);
  const int64_t step = state_.step;
  TAOPD_RETURN_IF_ERROR(ObserveGuard(metrics));
  if (state_.step != step) return absl::OkStatus();  // rolled back

  // Save before the evaluation, which may fail or take long.
  const bool last = run_.is_last();
  const SaveWish mine = !is_root()                          ? kNoSave
                        : run_state_->TakeSaveRequest()     ? kSaveNow
                        : save_interval_.IsDue(absl::Now()) ? kSaveBeside
                                                            : kNoSave;
  const auto wish = group_->AgreeOnLargest(mine);
  if (!wish.ok()) return WithExitCode(kExitUnavailable, wish.status());
  if (last) {
    TAOPD_RETURN_IF_ERROR(SaveOrWait());
  } else if (*wish == kSaveNow || run_.num_failed_saves() > 0) {
    Save().IgnoreError();
  } else if (*wish == kSaveBeside || run_.is_due(config_.trainer.save_every)) {
    SaveBeside();
  }
  return evaluation_is_due() ? Evaluate() : absl::OkStatus();
}

absl::StatusOr<StepResult> TrainingRun::TrainOn(const std::vector<const PromptRecord*>& batch) {
  const double lr = rollbacks_.lr_factor *
                    LearningRate(config_.optimizer, state_.step, config_.trainer.total_steps);
  const TrainState before = state_;
  const int64_t updates_before = student_.optimizer->num_updates();
  const bool is_traced = num_traced_steps_ < config_.trainer.trace_steps;
  context_.timeline = is_traced ? &timeline_ : nullptr;
  num_traced_steps_ += is_traced ? 1 : 0;
  try {
    const absl::Time start = absl::Now();
    absl::StatusOr<StepResult> result =
        TrainOneStep(context_, state_.step, lr, batch, pending_.get());
    if (result.ok() && result->pending == nullptr) {
      SetPending(nullptr);
      return *std::move(result);
    }
    if (result.ok()) {
      SetPending(result->pending);
      const absl::Status undone = UndoStep(before);
      state_.train_seconds += absl::ToDoubleSeconds(absl::Now() - start);
      return undone.ok() ? Stopped() : undone;
    }
    return StepFailed(before, result.status());
  } catch (const std::exception& error) {
    if (!IsOutOfMemory(error)) throw;
    return OutOfMemory(before, updates_before, Concat("step ", before.step + 1), error.what());
  }
}

absl::StatusOr<bool> TrainingRun::WaitForNextStep() {
  if (is_root()) {
    if (run_state_->pause_requested()) {
      run_state_->Update([](RunStatus& status) { status.phase = TrainerPhase::kPaused; });
    }
    // Save requests during the pause are carried out at once, because no step is in progress.
    run_state_->WaitWhilePaused([this] {
      if (group_->AgreeOnLargest(kSave).ok()) Save().IgnoreError();
    });
    if (wall_time_.IsUp(absl::Now())) {
      LogInfo("stopping: trainer.max_wall_time_s has no room for one more step",
              {{"step", state_.step}, {"max_wall_time_s", config_.trainer.max_wall_time_s}});
      run_state_->RequestStop(kExitStoppedByUser);
    }
    TAOPD_RETURN_IF_ERROR(group_->AgreeOnLargest(kStep).status());
  } else {
    int64_t command = kStep;
    do {
      TAOPD_ASSIGN_OR_RETURN(command, group_->AgreeOnLargest(kStep));
      if (command == kSave) Save().IgnoreError();
    } while (command == kSave);
  }
  // A signal may have reached any of them.
  TAOPD_ASSIGN_OR_RETURN(const int64_t code, group_->AgreeOnLargest(run_state_->stop_code()));
  return code != kExitOk;
}

absl::Status TrainingRun::PrepareSave() {
  TakeSavedBeside(/*waits=*/true);
  TAOPD_RETURN_IF_ERROR(KeepInFlight());
  run_.SetCheckpointFile("guard.json", guard_.State());
  if (!probe_.empty()) run_.SetCheckpointFile("probe.json", WriteProbe(probe_));
  PinCheckpoints();
  return absl::OkStatus();
}

void TrainingRun::SaveBeside() {
  const absl::Time start = absl::Now();
  // A single rank without room prevents the copy.
  const bool has_room = CheckpointCopyBytes(student_) <= copy_limit_bytes_;
  const auto without_room = config_.trainer.async_save == AsyncSave::kOff
                                ? absl::StatusOr<int64_t>(1)
                                : group_->AgreeOnLargest(has_room ? 0 : 1);
  if (without_room.value_or(1) > 0) {
    Save().IgnoreError();
    return;
  }
  absl::Status begun = PrepareSave();
  if (begun.ok()) begun = run_.SaveBeside();
  if (!begun.ok()) {
    LogWarning("the checkpoint is written before the next step", {{"error", begun}});
    Save().IgnoreError();
    return;
  }
  has_saved_ = true;
  save_interval_.Saved(absl::Now());
  checkpoint_before_ = std::exchange(newest_checkpoint_, state_.step);
  save_time_ += absl::Now() - start;
  if (context_.timeline != nullptr) {
    timeline_.Add(TimelineTrack::kTrainer, "save", start, absl::Now());
  }
}

void TrainingRun::TakeSavedBeside(bool waits) {
  const absl::Time start = absl::Now();
  const std::optional<SavedBeside> saved = run_.TakeSavedBeside(waits);
  if (!saved) return;
  wall_time_.SaveTook(saved->duration);
  if (saved->path.ok()) {
    run_state_->Update([&](RunStatus& status) {
      status.last_checkpoint = *saved->path;
      status.storage_problem.clear();
      status.saved_step = saved->step;
    });
  } else {
    NotSaved(saved->path.status());
    if (saved->step == state_.step) has_saved_ = false;
    if (last_good_checkpoint_ == saved->step) last_good_checkpoint_ = checkpoint_before_;
    newest_checkpoint_ = checkpoint_before_;
  }
  if (waits) save_time_ += absl::Now() - start;
}

bool TrainingRun::IsSaved() {
  TakeSavedBeside(/*waits=*/true);
  return has_saved_;
}

void TrainingRun::NotSaved(const absl::Status& status) {
  if (is_root()) {
    LogWarning("the weights stay in memory; the save is tried again after each step",
               {{"step", state_.step},
                {"saved_step", run_.newest_saved_step()},
                {"failed_saves", run_.num_failed_saves()},
                {"error", status}});
  }
  run_state_->Update([&](RunStatus& run) { run.storage_problem = std::string(status.message()); });
}

absl::Status TrainingRun::SaveOrWait() {
  // Waiting does not help if rollouts that the checkpoint needs have failed.
  TAOPD_RETURN_IF_ERROR(KeepInFlight());
  return UntilStored(Concat("the checkpoint of step ", state_.step), &run_, run_state_,
                     [this] { return Save(); });
}

absl::Status TrainingRun::Save() {
  const absl::Time start = absl::Now();
  // A run that waits for room stays in that phase, in which a stop request abandons the state.
  const TrainerPhase before = run_state_->status().phase;
  const bool waits = before == TrainerPhase::kWaitingForStorage;
  if (!waits) run_state_->Update([](RunStatus& status) { status.phase = TrainerPhase::kSaving; });
  const absl::Status prepared = PrepareSave();
  auto saved = prepared.ok() ? run_.Save() : absl::StatusOr<std::string>(prepared);
  has_saved_ = saved.ok();
  if (saved.ok()) {
    newest_checkpoint_ = state_.step;
    save_interval_.Saved(absl::Now());
  }
  wall_time_.SaveTook(absl::Now() - start);
  save_time_ += absl::Now() - start;
  if (context_.timeline != nullptr) {
    timeline_.Add(TimelineTrack::kTrainer, "save", start, absl::Now());
  }
  run_state_->Update([&](RunStatus& status) {
    status.phase = before;
    if (!saved.ok()) return;
    status.last_checkpoint = *saved;
    status.storage_problem.clear();
    status.saved_step = state_.step;
  });
  if (saved.ok()) return absl::OkStatus();
  // Once for each step; the end of a run tries more often.
  if (!waits) NotSaved(saved.status());
  return WithExitCode(kExitStorage, saved.status());
}

// Written after each traced step, so that a killed run leaves a file that can be opened.
void TrainingRun::WriteTimeline() {
  if (context_.timeline == nullptr || !is_root()) return;
  const absl::Status written =
      WriteFileAtomically(run_.run_dir() + "/trace.json", timeline_.Json());
  if (!written.ok()) LogWarning("the timeline is not written", {{"error", written}});
}

void TrainingRun::SetPending(std::shared_ptr<const PendingStep> pending) {
  pending_ = std::move(pending);
  if (pending_ == nullptr) return run_.SetPending(0, nullptr);
  run_.SetPending(pending_->mini_batch, [this](const std::string& dir) {
    return WritePendingStep(*pending_, group_->rank(), dir + "/" + kPendingDir);
  });
}

absl::Status TrainingRun::UndoStep(const TrainState& before) {
  state_ = before;
  const absl::Status position = order_->Restore(state_.epoch, state_.epoch_index);
  if (!position.ok()) return WithExitCode(kExitInternal, position);
  return absl::OkStatus();
}

absl::Status TrainingRun::StepFailed(const TrainState& before, const absl::Status& status) {
  // Without the other ranks nothing can be saved; the newest checkpoint is intact.
  if (!group_->health().ok()) return WithExitCode(kExitUnavailable, group_->health());
  // A step that fails has changed nothing but the position in the data.
  TAOPD_RETURN_IF_ERROR(UndoStep(before));
  if (absl::IsCancelled(status)) return Stopped();
  TAOPD_RETURN_IF_ERROR(SaveOrWait());
  // The engine's: what the teacher lacks is tried again until its outage budget is used up.
  if (absl::IsResourceExhausted(status)) {
    return OutOfMemory(before, student_.optimizer->num_updates(), Concat("step ", before.step + 1),
                       std::string(status.message()));
  }
  ExitCode code = kExitInternal;
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
    code = kExitUnavailable;
  } else if (absl::IsFailedPrecondition(status) || absl::IsDataLoss(status) ||
             absl::IsInvalidArgument(status)) {
    code = kExitData;
  }
  return WithExitCode(code, Annotate(status, Concat("step ", before.step + 1)));
}

absl::Status TrainingRun::OutOfMemory(const TrainState& before, int64_t updates_before,
                                      const std::string& where, const std::string& what) {
  student_.optimizer->ClearGradients();
  std::string saved = "the newest checkpoint is intact";
  // After an update the weights are between two steps, so the older checkpoint must suffice. A
  // single rank of several cannot save without the others, which do not know of the failure yet.
  if (student_.optimizer->num_updates() == updates_before && group_->world_size() == 1) {
    state_ = before;
    if (SaveOrWait().ok()) saved = Concat("the state after step ", before.step, " is saved");
  }
  return WithExitCode(
      kExitOutOfMemory,
      ResourceExhausted(where, ": out of memory: ", what.substr(0, what.find('\n')), "; ", saved,
                        ". Lower trainer.micro_batch_tokens, rollout.kv_cache_gb or "
                        "trainer.head_workspace_mb and continue with --resume. The plan was:\n",
                        memory_plan_));
}

absl::Status TrainingRun::FailSaved(const absl::Status& failure) {
  if (!IsSaved()) TAOPD_RETURN_IF_ERROR(SaveOrWait());
  return failure;
}

absl::Status TrainingRun::Stopped() {
  run_state_->Update([](RunStatus& status) { status.phase = TrainerPhase::kStopping; });
  TAOPD_RETURN_IF_ERROR(SaveOrWait());
  const auto code = group_->AgreeOnLargest(run_state_->stop_code());
  if (!code.ok()) return WithExitCode(kExitUnavailable, code.status());
  return run_.Stopped(static_cast<ExitCode>(*code));
}

}  // namespace taopd
