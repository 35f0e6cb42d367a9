#include "trainer/loop/training_run.h"

#include <absl/strings/str_format.h>

#include <iostream>

#include "common/base/log.h"
#include "common/model/torch_errors.h"
#include "kernels/cpu/isa/isa.h"
#include "taopd/objective/check_objective.h"
#include "trainer/dist/rank_metrics.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/setup/ranks.h"
#include "trainer/setup/training/training_setup.h"

namespace taopd {
namespace {

RunLifecycleOptions LifecycleOptionsOf(TrainingParts& parts) {
  const TrainerConfig& trainer = parts.config.trainer;
  return {.start = parts.start,
          .save_interval = absl::Minutes(trainer.save_minutes),
          .wall_time_limit = absl::Seconds(trainer.max_wall_time_s),
          .memory = &parts.memory,
          .trace = &parts.trace,
          .service_manager = &parts.control.service_manager};
}

std::string MetricLines(const Metrics& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) text += absl::StrFormat("  %-32s %.9g\n", name, value);
  return text;
}

// Returns one rollout as text, or as ids if there is no tokenizer.
std::string RolloutText(const Tokenizer* tokenizer, const PromptRecord& prompt,
                        const Rollout& rollout) {
  std::string text = Concat("  --- a response to ", prompt.id, "\n");
  if (tokenizer != nullptr) {
    return text + tokenizer->Decode(rollout.prompt_ids, /*skip_special_tokens=*/false) +
           "\n  ---\n" + tokenizer->Decode(rollout.response_ids, /*skip_special_tokens=*/false) +
           "\n";
  }
  text += "  ids";
  for (const int32_t id : rollout.prompt_ids) text += Concat(" ", id);
  text += " |";
  for (const int32_t id : rollout.response_ids) text += Concat(" ", id);
  return text + "\n";
}

}  // namespace

TrainingRun::TrainingRun(TrainConfig config, RunControl* run_control, ProcessGroup* group)
    : parts_(std::move(config), run_control, group),
      lifecycle_(&parts_.run, run_control, LifecycleOptionsOf(parts_)),
      evaluations_(parts_.Context(), &lifecycle_),
      pipeline_(parts_.Context(), &lifecycle_),
      guard_(parts_.Context(), &lifecycle_, &evaluations_, &pipeline_),
      report_(parts_.Context()) {}

absl::Status TrainingRun::Run(const StartMode& mode) {
  TAOPD_ASSIGN_OR_RETURN(const bool is_finished, SetUp(mode));
  parts_.control.service_manager.Ready();
  if (is_finished) return absl::OkStatus();
  // Rank 0 watches all ranks: one that hangs holds it up, and in a pause the others wait for it.
  ControlParts& control = parts_.control;
  control.service_manager.WatchWith(
      [this, &control] { return !parts_.group->is_root() || control.liveness->Check().ok(); });
  try {
    return mode.dry_run ? DryRun() : Loop();
  } catch (const std::exception& error) {
    if (!IsOutOfMemory(error)) throw;
    // Steps and roll-backs handle their own exceptions, so the state is that of the end of a step.
    return lifecycle_.EndOutOfMemory(Concat("after step ", parts_.run.state().step), error.what(),
                                     is_alone());
  }
}

absl::StatusOr<bool> TrainingRun::SetUp(const StartMode& mode) {
  CheckpointedRun& run = parts_.run;
  ProcessGroup* const group = parts_.group;
  TAOPD_RETURN_IF_ERROR(CheckAndPlan(&parts_));
  TAOPD_RETURN_IF_ERROR(LoadStudentOfRun(mode, &parts_));
  // This comes before the wait for the teacher, because a finished run needs none.
  TAOPD_ASSIGN_OR_RETURN(const bool is_finished, IsFinished());
  if (is_finished) return true;
  if (absl::Status connected = AgreeOnFailure(group, Connect(&parts_)); !connected.ok())
    return run.WithChangedSettings(connected);
  auto facts = FactsOfRun(&parts_);
  if (absl::Status read = group->AgreeOnStatus(facts.status()); !read.ok())
    return run.WithChangedSettings(BadData(read));
  TAOPD_RETURN_IF_ERROR(run.CheckFacts(*facts));
  if (mode.dry_run) {
    TAOPD_RETURN_IF_ERROR(run.CheckDisk());
    TAOPD_RETURN_IF_ERROR(pipeline_.Restart(/*other_prompts=*/false));
    return false;
  }
  report_.MeasureDevice();
  // From here on there is something to save, so the loop handles a request to stop.
  parts_.run_control->PassStopsOn([group](ExitCode code) { group->RequestStop(code); });
  TAOPD_RETURN_IF_ERROR(run.OpenOutput());
  TAOPD_RETURN_IF_ERROR(guard_.Restore());
  guard_.RestorePause();
  guard_.ClearRollbackIntent();
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
  if (is_finished) run.LeaveFinished();
  return is_finished;
}

void TrainingRun::Announce() {
  const CheckpointedRun& run = parts_.run;
  const TrainConfig& config = parts_.config;
  lifecycle_.ShowBegin();
  parts_.run_control->Update([&](RunStatus& status) {
    status.teacher = parts_.teacher.Health();
    status.plan_gb = parts_.memory.gb;
  });
  if (!parts_.group->is_root()) return;
  LogInfo(run.resumed() ? "resumed" : "started",
          {{"run", config.run.name},
           {"dir", run.run_dir()},
           {"step", parts_.run.state().step},
           {"parameters", parts_.run.student().decoder->config().NumParameters()},
           {"prompts", parts_.data.prompts.size()},
           {"objective", NameOf(config.LossTerms())},
           {"teacher", parts_.teacher.info.model_name},
           {"ranks", parts_.group->world_size()},
           {"cpu_kernels", cpu::NameOf(cpu::WidestInstructionSet())}});
}

absl::Status TrainingRun::Loop() {
  TAOPD_RETURN_IF_ERROR(evaluations_.RunIfMissing());
  while (!evaluations_.ends_run()) {
    TAOPD_ASSIGN_OR_RETURN(const bool stops,
                           WithExitCode(kExitUnavailable, lifecycle_.WaitForNextStep()));
    if (stops) return lifecycle_.EndStopped();
    TAOPD_RETURN_IF_ERROR(Step());
  }
  TAOPD_RETURN_IF_ERROR(evaluations_.Finish());
  TAOPD_RETURN_IF_ERROR(lifecycle_.SaveUntilStored());
  return lifecycle_.EndFinished();
}

absl::Status TrainingRun::DryRun() {
  CheckpointedRun& run = parts_.run;
  const int64_t batch_size = parts_.config.data.train_batch_size;
  parts_.step_context.on_bad_batch = [](const BadBatch&) {};
  absl::StatusOr<StepResult> result;
  try {
    result = TrainOneStep(parts_.step_context, run.state().step, /*lr=*/0,
                          parts_.data.NextBatch(batch_size));
  } catch (const std::exception& error) {
    if (!IsOutOfMemory(error)) throw;
    result = ResourceExhausted("out of memory: ", MessageOf(error), ". The plan was:\n",
                               parts_.memory.table);
  }
  if (!result.ok()) {
    return WithExitCode(CodeOfFailedStep(result.status()),
                        Annotate(result.status(), "the step of the dry run"));
  }
  TAOPD_RETURN_IF_ERROR(CombineRankMetrics(parts_.group, &result->metrics));
  if (parts_.group->is_root()) {
    std::cout << "dry run: " << batch_size << " of " << parts_.data.prompts.size() << " prompts, "
              << batch_size * parts_.config.rollout.n
              << " responses; no weight has changed, and nothing is written\n"
              << MetricLines(result->metrics);
    if (!result->rollouts.empty()) {
      std::cout << RolloutText(run.student().tokenizer.get(), *result->prompts.front(),
                               result->rollouts.front());
    }
    std::cout << std::flush;
  }
  if (result->num_skipped_updates > 0) {
    return WithExitCode(kExitNumerics,
                        Internal("the loss or its gradient is not finite in ",
                                 result->num_skipped_updates, " mini-batches of the dry run"));
  }
  return absl::OkStatus();
}

absl::Status TrainingRun::Step() {
  const absl::Time start = absl::Now();
  TrainState& state = parts_.run.state();
  parts_.run_control->SetPhase(TrainerPhase::kRunning);
  TAOPD_ASSIGN_OR_RETURN(const StepResult result,
                         TrainOn(parts_.data.NextBatch(parts_.config.data.train_batch_size)));
  CountStep(result);
  Metrics metrics = result.metrics;
  guard_.AddMetrics(result, &metrics);
  lifecycle_.wall_time().ObserveStep(absl::Now() - start);
  state.train_seconds += absl::ToDoubleSeconds(absl::Now() - start);
  metrics.emplace_back("time/save_s", absl::ToDoubleSeconds(lifecycle_.TakeSaveTime()));
  metrics.emplace_back("time/evaluation_s", absl::ToDoubleSeconds(evaluations_.TakeWaitTime()));
  TAOPD_RETURN_IF_ERROR(WithExitCode(kExitUnavailable, report_.Write(result, &metrics)));
  lifecycle_.ShowStep(metrics);
  parts_.trace.Write();
  if (state.nonfinite_in_a_row >= parts_.config.trainer.max_nonfinite_steps) {
    return lifecycle_.EndFailed(
        WithExitCode(kExitNumerics, Internal("the loss or its gradient was not finite in ",
                                             state.nonfinite_in_a_row, " steps in a row")));
  }
  lifecycle_.RecordFinishedSave(/*waits=*/false);
  TAOPD_RETURN_IF_ERROR(evaluations_.RecordIfReady());
  TAOPD_ASSIGN_OR_RETURN(const bool has_rolled_back, guard_.Observe(metrics));
  if (has_rolled_back) return absl::OkStatus();
  // Save before the evaluation, which may fail or take long.
  TAOPD_RETURN_IF_ERROR(lifecycle_.SaveIfDue(parts_.config.trainer.save_every));
  return evaluations_.is_due() ? evaluations_.Run() : absl::OkStatus();
}

absl::Status TrainingRun::AverageWeights(int64_t step) {
  // The pipeline updates a teacher that scores responses of later steps.
  if (!parts_.teacher.self || parts_.step_context.rollouts_ahead != nullptr)
    return absl::OkStatus();
  return WithExitCode(kExitUnavailable, parts_.teacher.self->UpdateAfterStep(step));
}

void TrainingRun::CountStep(const StepResult& result) {
  const TrainConfig& config = parts_.config;
  TrainState& state = parts_.run.state();
  parts_.run_control->Progress();
  ++state.step;
  lifecycle_.MarkChanged();
  state.epoch = parts_.data.order->epoch();
  state.epoch_index = parts_.data.order->index();
  const int64_t num_mini_batches = config.data.train_batch_size / config.trainer.mini_batch_size;
  state.nonfinite_in_a_row =
      result.num_skipped_updates == num_mini_batches ? state.nonfinite_in_a_row + 1 : 0;
}

absl::StatusOr<StepResult> TrainingRun::TrainOn(const std::vector<const PromptRecord*>& batch) {
  const TrainerConfig& trainer = parts_.config.trainer;
  TrainState& state = parts_.run.state();
  const double lr =
      guard_.lr_factor() * LearningRate(parts_.config.optimizer, state.step, trainer.total_steps);
  const TrainState before = state;
  const AdamW& optimizer = *parts_.run.student().optimizer;
  const int64_t changes_before = optimizer.num_changes();
  parts_.step_context.timeline = parts_.trace.BeginStep();
  try {
    const absl::Time start = absl::Now();
    absl::StatusOr<StepResult> result =
        TrainOneStep(parts_.step_context, state.step, lr, batch, lifecycle_.pending());
    if (!result.ok()) return StepFailed(before, result.status());
    lifecycle_.SetPending(result->pending);
    if (result->pending == nullptr) {
      TAOPD_RETURN_IF_ERROR(AverageWeights(before.step + 1));
      return *std::move(result);
    }
    const absl::Status undone = UndoStep(before);
    state.train_seconds += absl::ToDoubleSeconds(absl::Now() - start);
    return undone.ok() ? lifecycle_.EndStopped() : undone;
  } catch (const std::exception& error) {
    if (!IsOutOfMemory(error)) throw;
    state = before;
    // After an update the weights, or their average, lie between two steps. Only the newest
    // checkpoint can continue the run then.
    return lifecycle_.EndOutOfMemory(Concat("step ", before.step + 1), error.what(),
                                     is_alone() && optimizer.num_changes() == changes_before);
  }
}

absl::Status TrainingRun::StepFailed(const TrainState& before, const absl::Status& status) {
  // A rank cannot save without the others. The newest checkpoint is intact.
  if (!parts_.group->health().ok()) return WithExitCode(kExitUnavailable, parts_.group->health());
  // A step that fails has changed nothing but the position in the data.
  TAOPD_RETURN_IF_ERROR(UndoStep(before));
  if (absl::IsCancelled(status)) return lifecycle_.EndStopped();
  TAOPD_RETURN_IF_ERROR(lifecycle_.SaveUntilStored());
  // This machine is short of memory, and not a server: clients retry RESOURCE_EXHAUSTED and return
  // UNAVAILABLE in the end (retry_policy.h, http_reward.h, remote_rollout_engine.h).
  if (absl::IsResourceExhausted(status)) {
    return lifecycle_.EndOutOfMemory(Concat("step ", before.step + 1),
                                     std::string(status.message()), /*saves=*/true);
  }
  return WithExitCode(CodeOfFailedStep(status), Annotate(status, Concat("step ", before.step + 1)));
}

absl::Status TrainingRun::UndoStep(const TrainState& before) {
  TrainState& state = parts_.run.state();
  state = before;
  return WithExitCode(kExitInternal, parts_.data.order->Restore(state.epoch, state.epoch_index));
}

}  // namespace taopd
