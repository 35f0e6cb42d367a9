#include "trainer/commands/train/training_run.h"

#include "common/base/log.h"
#include "common/io/file.h"
#include "kernels/cpu/isa/isa.h"
#include "taopd/objective/check_objective.h"
#include "trainer/commands/process.h"
#include "trainer/commands/train/dry_run.h"
#include "trainer/commands/train/setup/ranks.h"
#include "trainer/commands/train/setup/training_setup.h"
#include "trainer/commands/until_stored.h"
#include "trainer/optim/lr_schedule.h"

namespace taopd {

namespace {

// The next action, which rank 0 chooses for all ranks.
enum Command : int64_t { kStep = 0, kSave = 1 };
// The kind of save after a step, which rank 0 chooses for all ranks.
enum SaveKind : int64_t { kNoSave = 0, kStartSave = 1, kSaveNow = 2 };

}  // namespace

TrainingRun::TrainingRun(TrainConfig config, RunState* state, ProcessGroup* group)
    : parts_(std::move(config), state, group),
      saves_(&parts_),
      evaluations_(&parts_, &saves_),
      pipeline_(&parts_, &saves_),
      guard_(&parts_, &saves_, &evaluations_, &pipeline_),
      report_(&parts_) {}

absl::Status TrainingRun::Run(const StartMode& mode) {
  TAOPD_ASSIGN_OR_RETURN(const bool is_finished, SetUp(mode));
  parts_.service.Ready();
  if (is_finished) return absl::OkStatus();
  // A rank that hangs holds up rank 0; during a pause the others wait for rank 0.
  parts_.service.WatchWith([this] { return !parts_.is_root() || parts_.liveness->Check().ok(); });
  try {
    return mode.dry_run ? DryRun(parts_) : Loop();
  } catch (const std::exception& error) {
    if (!IsOutOfMemory(error)) throw;
    // A step handles its own exceptions, so the state here is that of the end of a step.
    const int64_t changes_before = may_go_back_ ? -1 : parts_.student.optimizer->num_changes();
    return saves_.OutOfMemory(parts_.state, changes_before,
                              Concat("after step ", parts_.state.step), error.what());
  }
}

absl::StatusOr<bool> TrainingRun::SetUp(const StartMode& mode) {
  CheckpointedRun& run = parts_.run;
  ProcessGroup* const group = parts_.group;
  TAOPD_RETURN_IF_ERROR(CheckAndPlan(&parts_));
  TAOPD_RETURN_IF_ERROR(LoadStudentOfRun(mode, &parts_));
  // Before the teacher is asked for: a finished run needs none.
  TAOPD_ASSIGN_OR_RETURN(const bool is_finished, IsFinished());
  if (is_finished) return true;
  if (absl::Status connected = AgreeOnFailure(group, Connect(&parts_)); !connected.ok())
    return run.WithChangedSettings(connected);
  auto facts = FactsOfRun(parts_);
  if (absl::Status read = group->AgreeOnStatus(facts.status()); !read.ok())
    return run.WithChangedSettings(BadData(read));
  TAOPD_RETURN_IF_ERROR(run.CheckFacts(*facts));
  if (mode.dry_run) {
    TAOPD_RETURN_IF_ERROR(run.CheckDisk());
    TAOPD_RETURN_IF_ERROR(pipeline_.Restart(/*other_prompts=*/false));
    return false;
  }
  // From here on there is something to save: a stop is for the loop.
  parts_.run_state->PassStopsOn([group](ExitCode code) { group->RequestStop(code); });
  TAOPD_RETURN_IF_ERROR(run.OpenOutput());
  TAOPD_RETURN_IF_ERROR(guard_.Restore());
  guard_.ClearRollbackIntent();
  parts_.output.store(&run.output());
  Announce();
  return false;
}

absl::StatusOr<bool> TrainingRun::IsFinished() {
  CheckpointedRun& run = parts_.run;
  const TrainConfig& config = parts_.config;
  if (!run.resumed() || run.settings_differ()) return false;
  const auto records = run.ReadRecords();
  TAOPD_RETURN_IF_ERROR(BadData(parts_.group->AgreeOnStatus(records.status())));
  evaluations_.Observe(*records);
  const bool is_evaluated = records->has_evaluation || config.data.val.empty() ||
                            config.eval.measure == EvalMeasure::kNone || !run.is_last();
  TAOPD_ASSIGN_OR_RETURN(const bool is_exported, WithExitCode(kExitUnavailable, run.IsExported()));
  const bool is_finished = evaluations_.ends_run() && is_evaluated && is_exported;
  if (is_finished && parts_.is_root()) {
    LogInfo(
        "the run is finished and stays as it is",
        {{"dir", run.run_dir()}, {"step", parts_.state.step}, {"model", run.run_dir() + "/model"}});
  }
  return is_finished;
}

void TrainingRun::Announce() {
  const CheckpointedRun& run = parts_.run;
  const TrainConfig& config = parts_.config;
  const int64_t step = parts_.state.step;
  parts_.run_state->Update([&](RunStatus& status) {
    status.run_name = config.run.name;
    status.total_steps = config.trainer.total_steps;
    status.step = step;
    status.phase = TrainerPhase::kRunning;
    status.teacher = parts_.Health();
    status.plan_gb = parts_.memory.gb;
    if (run.resumed()) {
      status.last_checkpoint = run.resumed_from();
      status.saved_step = step;
    }
  });
  if (!parts_.is_root()) return;
  LogInfo(run.resumed() ? "resumed" : "started",
          {{"run", config.run.name},
           {"dir", run.run_dir()},
           {"step", step},
           {"parameters", parts_.student.decoder->config().NumParameters()},
           {"prompts", parts_.data.prompts.size()},
           {"objective", NameOf(config.LossTerms())},
           {"teacher", parts_.teacher_info.model_name},
           {"ranks", parts_.group->world_size()},
           {"cpu_kernels", cpu::NameOf(cpu::WidestInstructionSet())}});
}

absl::Status TrainingRun::Loop() {
  TAOPD_RETURN_IF_ERROR(evaluations_.RunIfMissing());
  while (!evaluations_.ends_run()) {
    TAOPD_ASSIGN_OR_RETURN(const bool stops, WithExitCode(kExitUnavailable, WaitForNextStep()));
    if (stops) return saves_.Stopped();
    TAOPD_RETURN_IF_ERROR(Step());
  }
  TAOPD_RETURN_IF_ERROR(evaluations_.Finish());
  if (!saves_.WaitUntilSaved()) {
    TAOPD_RETURN_IF_ERROR(saves_.SaveOrWait());
  }
  RunState* const run_state = parts_.run_state;
  TAOPD_RETURN_IF_ERROR(
      UntilStored("the model", &parts_.run, run_state, [this] { return parts_.run.Export(); }));
  run_state->Update([](RunStatus& status) { status.phase = TrainerPhase::kFinished; });
  return absl::OkStatus();
}

absl::Status TrainingRun::Step() {
  const absl::Time start = absl::Now();
  TrainState& state = parts_.state;
  parts_.run_state->Update([](RunStatus& status) { status.phase = TrainerPhase::kRunning; });
  std::vector<const PromptRecord*> batch;
  for (int64_t index : parts_.data.order->Next(parts_.config.data.train_batch_size))
    batch.push_back(&parts_.data.prompts[index]);
  TAOPD_ASSIGN_OR_RETURN(const StepResult result, TrainOn(batch));
  StepDone(result);
  Metrics metrics = result.metrics;
  guard_.AddMetrics(result, &metrics);
  parts_.wall_time.ObserveStep(absl::Now() - start);
  state.train_seconds += absl::ToDoubleSeconds(absl::Now() - start);
  metrics.emplace_back("time/save_s", absl::ToDoubleSeconds(saves_.TakeElapsed()));
  metrics.emplace_back("time/evaluation_s", absl::ToDoubleSeconds(evaluations_.TakeElapsed()));
  TAOPD_RETURN_IF_ERROR(WithExitCode(kExitUnavailable, report_.Write(result, &metrics)));
  WriteTimeline();
  if (state.nonfinite_in_a_row >= parts_.config.trainer.max_nonfinite_steps) {
    return saves_.FailSaved(
        WithExitCode(kExitNumerics, Internal("the loss or its gradient was not finite in ",
                                             state.nonfinite_in_a_row, " steps in a row")));
  }
  saves_.RecordFinishedSave(/*waits=*/false);
  TAOPD_RETURN_IF_ERROR(evaluations_.RecordIfReady());
  const int64_t step = state.step;
  may_go_back_ = true;
  TAOPD_RETURN_IF_ERROR(guard_.Observe(metrics));
  may_go_back_ = false;
  if (state.step != step) return absl::OkStatus();  // rolled back
  // Save before the evaluation, which may fail or take long.
  TAOPD_RETURN_IF_ERROR(SaveIfDue());
  return evaluations_.is_due() ? evaluations_.Run() : absl::OkStatus();
}

absl::Status TrainingRun::AverageWeights(int64_t step) {
  // The pipeline updates a teacher that scores responses of later steps.
  if (!parts_.self_teacher || parts_.context.rollouts_ahead != nullptr) return absl::OkStatus();
  const absl::Status taken = parts_.self_teacher->StepDone(step);
  return taken.ok() ? taken : WithExitCode(kExitUnavailable, taken);
}

void TrainingRun::StepDone(const StepResult& result) {
  const TrainConfig& config = parts_.config;
  TrainState& state = parts_.state;
  parts_.run_state->Progress();
  ++state.step;
  saves_.MarkChanged();
  state.epoch = parts_.data.order->epoch();
  state.epoch_index = parts_.data.order->index();
  const int64_t num_minis = config.data.train_batch_size / config.trainer.mini_batch_size;
  state.nonfinite_in_a_row =
      result.num_skipped_updates == num_minis ? state.nonfinite_in_a_row + 1 : 0;
}

absl::Status TrainingRun::SaveIfDue() {
  const SaveKind own_request = !parts_.is_root()                     ? kNoSave
                               : parts_.run_state->TakeSaveRequest() ? kSaveNow
                               : saves_.IsDue(absl::Now())           ? kStartSave
                                                                     : kNoSave;
  TAOPD_ASSIGN_OR_RETURN(const int64_t request,
                         WithExitCode(kExitUnavailable, parts_.group->AgreeOnLargest(own_request)));
  if (parts_.run.is_last()) return saves_.SaveOrWait();
  if (request == kSaveNow || parts_.run.checkpoints().num_failed_saves() > 0) {
    saves_.Save().IgnoreError();
  } else if (request == kStartSave || parts_.run.is_due(parts_.config.trainer.save_every)) {
    saves_.StartSave();
  }
  return absl::OkStatus();
}

absl::StatusOr<StepResult> TrainingRun::TrainOn(const std::vector<const PromptRecord*>& batch) {
  const TrainerConfig& trainer = parts_.config.trainer;
  TrainState& state = parts_.state;
  const double lr =
      guard_.lr_factor() * LearningRate(parts_.config.optimizer, state.step, trainer.total_steps);
  const TrainState before = state;
  const int64_t changes_before = parts_.student.optimizer->num_changes();
  const bool is_traced = num_traced_steps_ < trainer.trace_steps;
  parts_.context.timeline = is_traced ? &parts_.timeline : nullptr;
  num_traced_steps_ += is_traced ? 1 : 0;
  try {
    const absl::Time start = absl::Now();
    absl::StatusOr<StepResult> result =
        TrainOneStep(parts_.context, state.step, lr, batch, saves_.pending());
    if (!result.ok()) return StepFailed(before, result.status());
    saves_.SetPending(result->pending);
    if (result->pending == nullptr) {
      TAOPD_RETURN_IF_ERROR(AverageWeights(before.step + 1));
      return *std::move(result);
    }
    const absl::Status undone = parts_.UndoStep(before);
    state.train_seconds += absl::ToDoubleSeconds(absl::Now() - start);
    return undone.ok() ? saves_.Stopped() : undone;
  } catch (const std::exception& error) {
    if (!IsOutOfMemory(error)) throw;
    return saves_.OutOfMemory(before, changes_before, Concat("step ", before.step + 1),
                              error.what());
  }
}

absl::Status TrainingRun::StepFailed(const TrainState& before, const absl::Status& status) {
  // Without the other ranks nothing can be saved; the newest checkpoint is intact.
  if (!parts_.group->health().ok()) return WithExitCode(kExitUnavailable, parts_.group->health());
  // A step that fails has changed nothing but the position in the data.
  TAOPD_RETURN_IF_ERROR(parts_.UndoStep(before));
  if (absl::IsCancelled(status)) return saves_.Stopped();
  TAOPD_RETURN_IF_ERROR(saves_.SaveOrWait());
  // Only the engine can be out of memory here, because a teacher's RESOURCE_EXHAUSTED is retried
  // until its outage budget is used up.
  if (absl::IsResourceExhausted(status)) {
    return saves_.OutOfMemory(before, parts_.student.optimizer->num_changes(),
                              Concat("step ", before.step + 1), std::string(status.message()));
  }
  return WithExitCode(CodeOfFailedStep(status), Annotate(status, Concat("step ", before.step + 1)));
}

absl::StatusOr<bool> TrainingRun::WaitForNextStep() {
  RunState* const run_state = parts_.run_state;
  ProcessGroup* const group = parts_.group;
  if (parts_.is_root()) {
    if (run_state->pause_requested()) {
      run_state->Update([](RunStatus& status) { status.phase = TrainerPhase::kPaused; });
    }
    // Save requests during the pause are carried out at once, because no step is in progress.
    run_state->WaitWhilePaused([this] {
      if (parts_.group->AgreeOnLargest(kSave).ok()) saves_.Save().IgnoreError();
    });
    if (parts_.wall_time.IsUp(absl::Now())) {
      LogInfo("stopping: trainer.max_wall_time_s has no room for one more step",
              {{"step", parts_.state.step},
               {"max_wall_time_s", parts_.config.trainer.max_wall_time_s}});
      run_state->RequestStop(kExitStoppedByUser);
    }
    TAOPD_RETURN_IF_ERROR(group->AgreeOnLargest(kStep).status());
  } else {
    int64_t command = kStep;
    do {
      TAOPD_ASSIGN_OR_RETURN(command, group->AgreeOnLargest(kStep));
      if (command == kSave) saves_.Save().IgnoreError();
    } while (command == kSave);
  }
  // A signal may have reached any rank.
  TAOPD_ASSIGN_OR_RETURN(const int64_t code, group->AgreeOnLargest(run_state->stop_code()));
  return code != kExitOk;
}

// Written after each traced step, so that a killed run leaves a file that can be opened.
void TrainingRun::WriteTimeline() {
  if (parts_.context.timeline == nullptr || !parts_.is_root()) return;
  const absl::Status written =
      WriteFileAtomically(parts_.run.run_dir() + "/trace.json", parts_.timeline.Json());
  if (!written.ok()) LogWarning("the timeline could not be written", {{"error", written}});
}

}  // namespace taopd
