// The daemon of one experiment: set-up, the loop over steps, evaluation, checkpoints, the end.

#include <atomic>

#include "common/base/log.h"
#include "common/engine/torch_engine.h"
#include "taopd/objective/check_objective.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/run/checkpointed_run.h"
#include "trainer/run/commands.h"
#include "trainer/step/train_step.h"

namespace taopd {
namespace {

class TrainingRun {
 public:
  TrainingRun(TrainConfig config, RunState* state)
      : config_(std::move(config)),
        run_state_(state),
        run_(MakeRunOptions(config_, config_.student.dtype)) {}

  std::optional<RunFailure> Run(const StartMode& mode) {
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

 private:
  // ---- Set-up -----------------------------------------------------------------------------------
  std::optional<RunFailure> SetUp(const StartMode& mode) {
    SetNumThreads(config_.trainer.num_threads);
    // What only the configuration decides comes before anything is written.
    if (auto failure = CheckNames()) return failure;
    const auto load_student = [this] {
      return LoadStudent(config_.student.model, config_.student.dtype, config_.trainer.device,
                         &config_.optimizer, config_.student.tokenizer);
    };
    if (auto failure = run_.Start(mode, "student.model", load_student)) return failure;
    if (auto failure = LoadData()) return failure;
    if (auto failure = ConnectTeacher()) return failure;
    if (auto failure = StartEngine()) return failure;
    if (auto failure = StartControl()) return failure;
    if (auto failure = run_.OpenOutput()) return failure;
    output_.store(&run_.output());
    run_state_->Update([&](RunStatus& status) {
      status.run_name = config_.run.name;
      status.total_steps = config_.trainer.total_steps;
      status.step = state_.step;
      status.phase = TrainerPhase::kRunning;
      if (run_.resumed()) status.last_checkpoint = run_.resumed_from();
    });
    LogInfo(run_.resumed() ? "resumed" : "started",
            {{"run", config_.run.name},
             {"dir", run_.run_dir()},
             {"step", state_.step},
             {"parameters", student_.decoder->config().NumParameters()},
             {"prompts", prompts_.size()},
             {"objective", NameOf(config_.objective.Terms())},
             {"teacher", teacher_info_.model_name}});
    return std::nullopt;
  }

  // A port that is in use must not cost an old run, so the server starts before there is a record:
  // until then its metrics page is empty.
  std::optional<RunFailure> StartControl() {
    ControlServerOptions control;
    control.host = config_.trainer.host;
    control.http_port = config_.trainer.http_port;
    control.grpc_port = config_.trainer.grpc_port;
    auto server = ControlServer::Start(control, run_state_, [this] {
      const RunOutput* output = output_.load();
      return output != nullptr ? output->PrometheusText() : std::string();
    });
    if (!server.ok())
      return BadConfig(Annotate(server.status(), "trainer.http_port, trainer.grpc_port"));
    control_ = *std::move(server);
    LogInfo("control", {{"http", Concat(config_.trainer.host, ":", control_->http_port())},
                        {"grpc", Concat(config_.trainer.host, ":", control_->grpc_port())}});
    return std::nullopt;
  }

  std::optional<RunFailure> CheckNames() {
    auto client = MakeTeacherClient(config_.teacher);
    if (!client.ok()) return BadConfig(Annotate(client.status(), "teacher.endpoints"));
    teacher_ = *std::move(client);
    auto grader = grading::Grader::Make(config_.eval.grader, config_.eval.answer_pattern);
    if (!grader.ok()) return BadConfig(Annotate(grader.status(), "eval"));
    grader_ = *std::move(grader);
    if (absl::Status checked = CheckPromptSettings(config_.data, config_.eval); !checked.ok())
      return BadConfig(checked);
    return std::nullopt;
  }

  std::optional<RunFailure> LoadData() {
    const auto model = PromptModelOf(config_.data, student_);
    if (!model.ok()) return BadData(Annotate(model.status(), "student.model"));
    auto training = LoadTrainingPrompts(config_.data, *model);
    if (!training.ok()) return BadData(Annotate(training.status(), "data.train"));
    auto evaluation = LoadEvalPrompts(config_.data, config_.eval, *model);
    if (!evaluation.ok()) return BadData(Annotate(evaluation.status(), "data.val"));
    LogDataset("data.train", training->dataset);
    LogDataset("data.val", *evaluation);
    order_.emplace(training->shares, DeriveSeed(config_.run.seed, "data"), config_.data.shuffle);
    data_metrics_ = {
        {"data/prompts", static_cast<double>(training->dataset.records.size())},
        {"data/overlong_dropped", static_cast<double>(training->dataset.num_overlong())},
        {"data/truncated", static_cast<double>(training->dataset.num_truncated())},
        {"data/unknown_bytes", static_cast<double>(training->dataset.num_unknown_bytes())},
        {"data/duplicates", static_cast<double>(training->dataset.num_duplicates())}};
    prompts_ = std::move(training->dataset.records);
    problems_ = std::move(evaluation->records);
    const absl::Status position = order_->Restore(state_.epoch, state_.epoch_index);
    if (!position.ok())
      return BadData(Annotate(position, "the checkpoint does not fit data.train"));
    return std::nullopt;
  }

  std::optional<RunFailure> ConnectTeacher() {
    auto info = teacher_->Connect(absl::Seconds(config_.teacher.connect_timeout_s));
    if (!info.ok())
      return RunFailure{ExitCode::kTeacherUnavailable, Annotate(info.status(), "teacher")};
    teacher_info_ = *std::move(info);
    const absl::Status fits = CheckTeacherFits(config_, teacher_info_, student_);
    if (!fits.ok()) return BadConfig(fits);
    return std::nullopt;
  }

  std::optional<RunFailure> StartEngine() {
    auto engine = MakeRolloutEngine(config_, student_.decoder);
    if (!engine.ok()) return BadConfig(Annotate(engine.status(), "rollout"));
    engine_ = *std::move(engine);
    rollout_engine_.emplace(engine_.get());
    context_.config = &config_;
    context_.student = student_.decoder.get();
    context_.optimizer = student_.optimizer.get();
    context_.rollout_engine = &*rollout_engine_;
    context_.teacher = teacher_.get();
    context_.head = MakeHeadOptions(config_);
    context_.aggregation = *ParseAggregation(config_.objective.aggregation);
    context_.on_wait = [this]() -> absl::Status {
      const bool waiting = teacher_->stats().waiting;
      run_state_->Update([&](RunStatus& status) {
        status.phase = waiting ? TrainerPhase::kWaitingForTeacher : TrainerPhase::kRunning;
      });
      // A stop request ends the step in the usual case; without a teacher the step would not end.
      if (waiting && run_state_->stop_requested())
        return absl::CancelledError("asked to stop while the teacher is away");
      return absl::OkStatus();
    };
    return std::nullopt;
  }

  // ---- The loop ---------------------------------------------------------------------------------
  std::optional<RunFailure> Step() {
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
      return RunFailure{ExitCode::kNumerics,
                        Internal("the loss or its gradient was not finite in ",
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
  void WaitWhilePaused() {
    if (run_state_->pause_requested()) {
      run_state_->Update([](RunStatus& status) { status.phase = TrainerPhase::kPaused; });
    }
    run_state_->WaitWhilePaused([this] { Save(); });
  }

  void Report(const StepResult& result, const std::vector<const PromptRecord*>& batch) {
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
    metrics.emplace_back("teacher/retries", static_cast<double>(teacher_->stats().retries));
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

  std::optional<RunFailure> Evaluate(const std::string& when) {
    if (config_.eval.measure == "none" || problems_.empty()) return std::nullopt;
    run_state_->Update([](RunStatus& status) { status.phase = TrainerPhase::kEvaluating; });
    auto result = RunEvaluation(config_, problems_, &student_, &*rollout_engine_, teacher_.get());
    if (!result.ok()) {
      return RunFailure{
          absl::IsUnavailable(result.status()) ? ExitCode::kTeacherUnavailable : ExitCode::kBadData,
          Annotate(result.status(), "evaluation")};
    }
    run_.output().Write(state_.step, result->metrics);
    run_.output().WriteSamples(state_.step, when, result->samples);
    return std::nullopt;
  }

  std::optional<RunFailure> Save() {
    const TrainerPhase before = run_state_->status().phase;
    run_state_->Update([](RunStatus& status) { status.phase = TrainerPhase::kSaving; });
    auto saved = run_.Save();
    // Before the answer: who asked for the checkpoint may ask for the state next.
    run_state_->Update([before](RunStatus& status) { status.phase = before; });
    run_state_->CheckpointSaved(saved);
    // Without it the older ones are intact: go on, and try again when the next one is due.
    if (!saved.ok()) return RunFailure{ExitCode::kInternal, saved.status()};
    return std::nullopt;
  }

  // ---- Ends -------------------------------------------------------------------------------------
  std::optional<RunFailure> StepFailed(const TrainState& before, const StepFailure& failure) {
    // Before its first update a step has changed nothing but the position in the data.
    if (!failure.weights_changed) {
      state_ = before;
      Save();
    }
    if (absl::IsCancelled(failure.status)) {
      return RunFailure{ExitCode::kStopped, failure.status};
    }
    ExitCode code = ExitCode::kInternal;
    if (absl::IsUnavailable(failure.status) || absl::IsDeadlineExceeded(failure.status)) {
      code = ExitCode::kTeacherUnavailable;
    } else if (absl::IsFailedPrecondition(failure.status) || absl::IsDataLoss(failure.status) ||
               absl::IsInvalidArgument(failure.status)) {
      code = ExitCode::kBadData;
    }
    return RunFailure{code, Annotate(failure.status, Concat("step ", before.step + 1))};
  }

  std::optional<RunFailure> Stopped() {
    run_state_->Update([](RunStatus& status) { status.phase = TrainerPhase::kStopping; });
    if (auto failure = Save()) return failure;
    return run_.Stopped();
  }

  // Destroyed in reverse: the control server first, then the client, the engine, the student.
  TrainConfig config_;
  RunState* const run_state_;
  CheckpointedRun run_;
  Student& student_ = run_.student();
  TrainState& state_ = run_.state();
  std::vector<PromptRecord> prompts_;
  std::vector<PromptRecord> problems_;
  std::optional<EpochOrder> order_;
  Metrics data_metrics_;  // what became of the rows of data.train
  std::unique_ptr<grading::Grader> grader_;
  StepContext context_;
  std::unique_ptr<InferenceEngine> engine_;
  std::optional<LocalRolloutEngine> rollout_engine_;
  TeacherInfo teacher_info_;
  std::unique_ptr<TeacherClient> teacher_;
  std::atomic<const RunOutput*> output_ = nullptr;  // for the server's threads
  std::unique_ptr<ControlServer> control_;
};

}  // namespace

std::optional<RunFailure> RunTraining(TrainConfig config, const StartMode& mode, RunState* state) {
  return CatchExceptions([&] { return TrainingRun(std::move(config), state).Run(mode); });
}

}  // namespace taopd
