// The loop of a distillation run over its steps, with evaluation, checkpoints and the end.
#include "common/base/log.h"
#include "trainer/commands/measure_student.h"
#include "trainer/commands/train/training_run.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/teacher/teacher_metrics.h"

namespace taopd {

std::optional<CommandFailure> TrainingRun::Run(const StartMode& mode) {
  if (auto failure = SetUp(mode)) return failure;
  if (state_.step == 0 && config_.trainer.eval_at_start) {
    if (auto failure = Evaluate("before")) return failure;
  }
  while (!run_.is_last()) {
    WaitWhilePaused();
    if (run_state_->stop_requested()) return Stopped();
    if (auto failure = Step()) return failure;
  }
  run_state_->Update([](RunStatus& status) { status.phase = TrainerPhase::kFinished; });
  return run_.Export();
}

std::optional<CommandFailure> TrainingRun::Step() {
  const absl::Time start = absl::Now();
  const int64_t step = state_.step;
  run_state_->Update([](RunStatus& status) { status.phase = TrainerPhase::kRunning; });
  const TrainState before = state_;
  std::vector<const PromptRecord*> batch;
  for (int64_t index : order_->Next(config_.data.train_batch_size))
    batch.push_back(&prompts_[index]);

  const double lr = LearningRate(config_.optimizer, step, config_.trainer.total_steps);
  StepFailure failure;
  std::optional<StepResult> result = TrainOneStep(context_, step, lr, batch, &failure);
  if (!result) return StepFailed(before, failure);

  state_.step = step + 1;
  state_.epoch = order_->epoch();
  state_.epoch_index = order_->index();
  state_.train_seconds += absl::ToDoubleSeconds(absl::Now() - start);
  const int64_t num_minis = config_.data.train_batch_size / config_.trainer.mini_batch_size;
  state_.nonfinite_in_a_row =
      result->num_skipped_updates == num_minis ? state_.nonfinite_in_a_row + 1 : 0;
  Report(*result, batch);
  if (state_.nonfinite_in_a_row >= config_.trainer.max_nonfinite_steps) {
    return CommandFailure{kExitNumerics, Internal("the loss or its gradient was not finite in ",
                                                  state_.nonfinite_in_a_row, " steps in a row")};
  }

  const bool last = run_.is_last();
  if (last || run_.is_due(config_.trainer.eval_every)) {
    if (auto evaluated = Evaluate(last ? "after" : "eval")) return evaluated;
  }
  if (run_state_->TakeSaveRequest() || last || run_.is_due(config_.trainer.save_every)) {
    if (auto saved = Save(); saved && last) return saved;
  }
  return std::nullopt;
}

// Saves that are asked for meanwhile are answered at once: no step is in progress.
void TrainingRun::WaitWhilePaused() {
  if (run_state_->pause_requested()) {
    run_state_->Update([](RunStatus& status) { status.phase = TrainerPhase::kPaused; });
  }
  run_state_->WaitWhilePaused([this] { Save(); });
}

void TrainingRun::Report(const StepResult& result, const std::vector<const PromptRecord*>& batch) {
  Metrics metrics = result.metrics;
  int64_t graded = 0, correct = 0;
  for (size_t i = 0; student_.tokenizer && i < result.rollouts.size(); ++i) {
    const PromptRecord& problem = *batch[i / config_.rollout.n];
    if (problem.answer.empty()) continue;
    ++graded;
    const Rollout& rollout = result.rollouts[i];
    const std::string text = student_.tokenizer->Decode(rollout.response_ids);
    const bool truncated = rollout.finish != FinishReason::kStop;
    correct += GradeResponse(*grader_, config_.eval, text, truncated, problem).correct ? 1 : 0;
  }
  if (graded > 0)
    metrics.emplace_back("rollout/accuracy",
                         static_cast<double>(correct) / static_cast<double>(graded));
  const Metrics teacher_metrics = TeacherMetrics(teacher_->stats());
  metrics.insert(metrics.end(), teacher_metrics.begin(), teacher_metrics.end());
  metrics.emplace_back("data/epoch", static_cast<double>(order_->epoch()));
  metrics.insert(metrics.end(), data_metrics_.begin(), data_metrics_.end());
  run_.output().Write(state_.step, metrics);
  const double seconds_per_step = state_.train_seconds / static_cast<double>(state_.step);
  run_state_->Update([&](RunStatus& status) {
    status.step = state_.step;
    status.metrics = metrics;
    status.eta_seconds =
        seconds_per_step * static_cast<double>(config_.trainer.total_steps - state_.step);
  });
}

std::optional<CommandFailure> TrainingRun::Evaluate(const std::string& when) {
  if (config_.eval.measure == "none" || problems_.empty()) return std::nullopt;
  run_state_->Update([](RunStatus& status) { status.phase = TrainerPhase::kEvaluating; });
  auto result = MeasureStudent(config_, problems_, &student_, &*rollout_engine_, teacher_.get());
  if (!result.ok()) {
    return CommandFailure{absl::IsUnavailable(result.status()) ? kExitUnavailable : kExitData,
                          Annotate(result.status(), "evaluation")};
  }
  run_.output().Write(state_.step, result->metrics);
  run_.output().WriteSamples(state_.step, when, result->samples);
  return std::nullopt;
}

std::optional<CommandFailure> TrainingRun::Save() {
  const TrainerPhase before = run_state_->status().phase;
  run_state_->Update([](RunStatus& status) { status.phase = TrainerPhase::kSaving; });
  auto saved = run_.Save();
  // Before the answer: who asked for the checkpoint may ask for the state next.
  run_state_->Update([before](RunStatus& status) { status.phase = before; });
  run_state_->CheckpointSaved(saved);
  // Without it the older ones are intact: go on, and try again when the next one is due.
  if (!saved.ok()) return CommandFailure{kExitInternal, saved.status()};
  return std::nullopt;
}

std::optional<CommandFailure> TrainingRun::StepFailed(const TrainState& before,
                                                      const StepFailure& failure) {
  // Before its first update a step has changed nothing but the position in the data.
  if (!failure.weights_changed) {
    state_ = before;
    Save();
  }
  if (absl::IsCancelled(failure.status)) {
    return CommandFailure{kExitStopped, failure.status};
  }
  ExitCode code = kExitInternal;
  if (absl::IsUnavailable(failure.status) || absl::IsDeadlineExceeded(failure.status)) {
    code = kExitUnavailable;
  } else if (absl::IsFailedPrecondition(failure.status) || absl::IsDataLoss(failure.status) ||
             absl::IsInvalidArgument(failure.status)) {
    code = kExitData;
  }
  return CommandFailure{code, Annotate(failure.status, Concat("step ", before.step + 1))};
}

std::optional<CommandFailure> TrainingRun::Stopped() {
  run_state_->Update([](RunStatus& status) { status.phase = TrainerPhase::kStopping; });
  if (auto failure = Save()) return failure;
  return run_.Stopped();
}

}  // namespace taopd
