// The daemon of one experiment: set-up, the loop over steps, evaluation, checkpoints, the end.

#include <filesystem>
#include <iostream>

#include "common/base/log.h"
#include "common/config/yaml.h"
#include "common/engine/torch_engine.h"
#include "common/io/file.h"
#include "trainer/checkpoint/checkpoint_store.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/eval/evaluator.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/run/commands.h"
#include "trainer/run/run_output.h"
#include "trainer/run/run_setup.h"
#include "trainer/run/student.h"
#include "trainer/step/train_step.h"
#include "taopd/check_objective.h"

namespace taopd {
namespace {

class TrainingRun {
 public:
  TrainingRun(TrainConfig config, RunState* state) : config_(std::move(config)), run_state_(state) {}

  std::optional<RunFailure> Run(const StartMode& mode) {
    if (auto failure = SetUp(mode)) return failure;
    if (train_state_.step == 0 && config_.trainer.eval_at_start) {
      if (auto failure = Evaluate("before")) return failure;
    }
    while (train_state_.step < config_.trainer.total_steps) {
      WaitWhilePaused();
      if (run_state_->stop_requested()) return Stopped();
      if (auto failure = Step()) return failure;
    }
    run_state_->Update([](RunStatus& status) { status.phase = TrainerPhase::kFinished; });
    return Finish();
  }

 private:
  // ---- Set-up -----------------------------------------------------------------------------------
  std::optional<RunFailure> SetUp(const StartMode& mode) {
    SetNumThreads(config_.trainer.num_threads);
    run_dir_ = config_.run.Directory();
    config_yaml_ = WriteYamlSettings(DescribeSettings(config_));
    std::cout << "# effective configuration\n" << config_yaml_ << std::flush;

    // What only the configuration decides comes before anything is written.
    if (auto failure = CheckNames()) return failure;
    auto directory = OpenRunDirectory(run_dir_, mode, config_.trainer.keep_checkpoints);
    if (!directory.ok()) return RunFailure{DirectoryExitCode(directory.status()), directory.status()};
    directory_ = *std::move(directory);
    const bool resumed = directory_.checkpoint.has_value();

    const std::string model_dir = resumed ? directory_.checkpoint->path + "/model" : config_.student.model;
    auto student = LoadStudent(model_dir, config_.student.dtype, config_.trainer.device, &config_.optimizer,
                               resumed ? "" : config_.student.tokenizer);
    if (!student.ok()) return BadData(Annotate(student.status(), "student.model"));
    student_ = *std::move(student);
    if (resumed) {
      auto restored = LoadCheckpointState(directory_.checkpoint->path, &student_);
      if (!restored.ok()) return BadData(restored.status());
      train_state_ = *restored;
    }
    if (auto failure = LoadData()) return failure;
    if (auto failure = ConnectTeacher()) return failure;
    if (auto failure = StartEngine()) return failure;

    RunOutputOptions output;
    output.run_dir = run_dir_;
    output.total_steps = config_.trainer.total_steps;
    if (resumed) {
      output.resume_step = train_state_.step;
      output.metrics_bytes = train_state_.metrics_bytes;
      output.samples_bytes = train_state_.samples_bytes;
    }
    auto opened = RunOutput::Open(output);
    if (!opened.ok()) return RunFailure{ExitCode::kInternal, opened.status()};
    output_ = *std::move(opened);
    if (absl::Status written = WriteFileAtomically(run_dir_ + "/config.yaml", config_yaml_); !written.ok()) {
      return RunFailure{ExitCode::kInternal, written};
    }

    ControlServerOptions control;
    control.host = config_.trainer.host;
    control.http_port = config_.trainer.http_port;
    control.grpc_port = config_.trainer.grpc_port;
    auto server = ControlServer::Start(control, run_state_, [this] { return output_->PrometheusText(); });
    if (!server.ok()) return BadConfig(Annotate(server.status(), "trainer.http_port, trainer.grpc_port"));
    control_ = *std::move(server);
    LogInfo("control", {{"http", Concat(config_.trainer.host, ":", control_->http_port())},
                        {"grpc", Concat(config_.trainer.host, ":", control_->grpc_port())}});
    run_state_->Update([&](RunStatus& status) {
      status.run_name = config_.run.name;
      status.total_steps = config_.trainer.total_steps;
      status.step = train_state_.step;
      status.phase = TrainerPhase::kRunning;
      if (resumed) status.last_checkpoint = directory_.checkpoint->path;
    });
    LogInfo(resumed ? "resumed" : "started",
            {{"run", config_.run.name}, {"dir", run_dir_}, {"step", train_state_.step},
             {"parameters", student_.decoder->config().NumParameters()}, {"prompts", prompts_.size()},
             {"objective", NameOf(config_.objective.Terms())}, {"teacher", teacher_info_.model_name}});
    return std::nullopt;
  }

  std::optional<RunFailure> CheckNames() {
    auto client = MakeTeacherClient(config_.teacher);
    if (!client.ok()) return BadConfig(Annotate(client.status(), "teacher.endpoints"));
    teacher_ = *std::move(client);
    auto grader = Grader::Make(config_.eval.grader, config_.eval.answer_pattern);
    if (!grader.ok()) return BadConfig(Annotate(grader.status(), "eval"));
    grader_ = *std::move(grader);
    if (absl::Status checked = CheckPromptSettings(config_.data, config_.eval); !checked.ok()) return BadConfig(checked);
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
    data_metrics_ = {{"data/prompts", static_cast<double>(training->dataset.records.size())},
                     {"data/overlong_dropped", static_cast<double>(training->dataset.num_overlong())},
                     {"data/duplicates", static_cast<double>(training->dataset.num_duplicates())}};
    prompts_ = std::move(training->dataset.records);
    problems_ = std::move(evaluation->records);
    const absl::Status position = order_->Restore(train_state_.epoch, train_state_.epoch_index);
    if (!position.ok()) return BadData(Annotate(position, "the checkpoint does not fit data.train"));
    return std::nullopt;
  }

  std::optional<RunFailure> ConnectTeacher() {
    auto info = teacher_->Connect(absl::Seconds(config_.teacher.connect_timeout_s));
    if (!info.ok()) return RunFailure{ExitCode::kTeacherUnavailable, Annotate(info.status(), "teacher")};
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
      if (waiting && run_state_->stop_requested()) return absl::CancelledError("asked to stop while the teacher is away");
      return absl::OkStatus();
    };
    return std::nullopt;
  }

  // ---- The loop ---------------------------------------------------------------------------------
  std::optional<RunFailure> Step() {
    const absl::Time start = absl::Now();
    const int64_t step = train_state_.step;
    run_state_->Update([](RunStatus& status) { status.phase = TrainerPhase::kRunning; });
    const TrainState before = train_state_;
    std::vector<const PromptRecord*> batch;
    for (int64_t index : order_->Next(config_.data.train_batch_size)) batch.push_back(&prompts_[index]);

    const double lr = LearningRate(config_.optimizer, step, config_.trainer.total_steps);
    StepFailure failure;
    std::optional<StepResult> result = Train(context_, step, lr, batch, &failure);
    if (!result) return StepFailed(before, failure);

    train_state_.step = step + 1;
    train_state_.epoch = order_->epoch();
    train_state_.epoch_index = order_->index();
    train_state_.train_seconds += absl::ToDoubleSeconds(absl::Now() - start);
    const int64_t num_minis = config_.data.train_batch_size / config_.trainer.mini_batch_size;
    train_state_.nonfinite_in_a_row =
        result->num_skipped_updates == num_minis ? train_state_.nonfinite_in_a_row + 1 : 0;
    Report(*result, batch);
    if (train_state_.nonfinite_in_a_row >= config_.trainer.max_nonfinite_steps) {
      return RunFailure{ExitCode::kNumerics, Internal("the loss or its gradient was not finite in ",
                                                      train_state_.nonfinite_in_a_row, " steps in a row")};
    }

    const bool last = train_state_.step == config_.trainer.total_steps;
    if (last || IsDue(config_.trainer.eval_every)) {
      if (auto evaluated = Evaluate(last ? "after" : "eval")) return evaluated;
    }
    if (run_state_->TakeSaveRequest() || last || IsDue(config_.trainer.save_every)) {
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

  bool IsDue(int64_t every) const { return every > 0 && train_state_.step % every == 0; }

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
    if (graded > 0) metrics.emplace_back("rollout/accuracy", static_cast<double>(correct) / static_cast<double>(graded));
    metrics.emplace_back("teacher/retries", static_cast<double>(teacher_->stats().retries));
    metrics.emplace_back("data/epoch", static_cast<double>(order_->epoch()));
    metrics.insert(metrics.end(), data_metrics_.begin(), data_metrics_.end());
    output_->Write(train_state_.step, metrics);
    const double seconds_per_step = train_state_.train_seconds / static_cast<double>(train_state_.step);
    run_state_->Update([&](RunStatus& status) {
      status.step = train_state_.step;
      status.metrics = metrics;
      status.eta_seconds = seconds_per_step * static_cast<double>(config_.trainer.total_steps - train_state_.step);
    });
  }

  std::optional<RunFailure> Evaluate(const std::string& when) {
    if (config_.eval.measure == "none" || problems_.empty()) return std::nullopt;
    run_state_->Update([](RunStatus& status) { status.phase = TrainerPhase::kEvaluating; });
    auto result = RunEvaluation(config_, problems_, &student_, &*rollout_engine_, teacher_.get());
    if (!result.ok()) {
      return RunFailure{absl::IsUnavailable(result.status()) ? ExitCode::kTeacherUnavailable : ExitCode::kBadData,
                        Annotate(result.status(), "evaluation")};
    }
    output_->Write(train_state_.step, result->metrics);
    output_->WriteSamples(train_state_.step, when, result->samples);
    return std::nullopt;
  }

  std::optional<RunFailure> Save() {
    const TrainerPhase before = run_state_->status().phase;
    run_state_->Update([](RunStatus& status) { status.phase = TrainerPhase::kSaving; });
    train_state_.metrics_bytes = output_->metrics_bytes();
    train_state_.samples_bytes = output_->samples_bytes();
    auto saved = directory_.store->Save(train_state_.step, [&](const std::string& dir) {
      return SaveCheckpointFiles(student_, train_state_, config_yaml_, dir);
    });
    // Before the answer: who asked for the checkpoint may ask for the state next.
    run_state_->Update([before](RunStatus& status) { status.phase = before; });
    run_state_->CheckpointSaved(saved);
    if (!saved.ok()) {
      // Older checkpoints are intact: go on, and try again when the next one is due.
      LogError("checkpoint not saved", {{"step", train_state_.step}, {"error", saved.status()}});
      return RunFailure{ExitCode::kInternal, saved.status()};
    }
    LogInfo("checkpoint saved", {{"step", train_state_.step}, {"path", *saved}});
    return std::nullopt;
  }

  // ---- Ends -------------------------------------------------------------------------------------
  std::optional<RunFailure> StepFailed(const TrainState& before, const StepFailure& failure) {
    // Before its first update a step has changed nothing but the position in the data.
    if (!failure.weights_changed) {
      train_state_ = before;
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
    return RunFailure{ExitCode::kStopped,
                      absl::CancelledError(Concat("asked to stop after step ", train_state_.step, "; continue with --resume"))};
  }

  std::optional<RunFailure> Finish() {
    const std::string model_dir = run_dir_ + "/model";
    if (absl::Status saved = SaveDecoder(*student_.decoder, model_dir, student_.tokenizer_dir); !saved.ok()) {
      return RunFailure{ExitCode::kInternal, saved};
    }
    LogInfo("finished", {{"run", config_.run.name}, {"steps", train_state_.step},
                         {"train_seconds", train_state_.train_seconds}, {"model", model_dir}});
    return std::nullopt;
  }

  // Destroyed in reverse: the control server first, then the client, the engine, the student.
  TrainConfig config_;
  RunState* const run_state_;
  std::string run_dir_;
  std::string config_yaml_;
  RunDirectory directory_;
  Student student_;
  TrainState train_state_;
  std::vector<PromptRecord> prompts_;
  std::vector<PromptRecord> problems_;
  std::optional<EpochOrder> order_;
  Metrics data_metrics_;  // what became of the rows of data.train
  std::unique_ptr<Grader> grader_;
  StepContext context_;
  std::unique_ptr<InferenceEngine> engine_;
  std::optional<LocalRolloutEngine> rollout_engine_;
  TeacherInfo teacher_info_;
  std::unique_ptr<TeacherClient> teacher_;
  std::unique_ptr<RunOutput> output_;
  std::unique_ptr<ControlServer> control_;
};

}  // namespace

std::optional<RunFailure> RunTraining(TrainConfig config, const StartMode& mode, RunState* state) {
  try {
    return TrainingRun(std::move(config), state).Run(mode);
  } catch (const c10::Error& error) {
    return RunFailure{ExitCode::kInternal, Internal(error.what_without_backtrace())};
  } catch (const std::bad_alloc&) {
    return RunFailure{ExitCode::kInternal, ResourceExhausted("out of memory")};
  }
}

}  // namespace taopd
