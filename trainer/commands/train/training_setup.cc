// The start of a distillation run: everything that can refuse it, then the run's own files.
#include <algorithm>
#include <cstdlib>
#include <limits>

#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/engine/torch_engine.h"
#include "common/io/file.h"
#include "taopd/objective/check_objective.h"
#include "trainer/commands/configured_parts.h"
#include "trainer/commands/process.h"
#include "trainer/commands/teacher/self_teacher.h"
#include "trainer/commands/teacher/teacher_views.h"
#include "trainer/commands/teacher_fit.h"
#include "trainer/commands/train/memory_plan.h"
#include "trainer/commands/train/run_facts.h"
#include "trainer/commands/train/training_run.h"
#include "trainer/report/report.h"
#include "trainer/step/timing/model_flops.h"

namespace taopd {

namespace {

CheckpointedRunOptions MakeTrainingRunOptions(TrainConfig& config, ProcessGroup* group) {
  CheckpointedRunOptions options = MakeRunOptions(config, config.student.dtype, group);
  options.checkpoints.keep_every = config.trainer.keep_every;
  options.watched_metric = config.trainer.best_metric;
  options.max_pinned = MaxPinnedCheckpoints(config);
  return options;
}

KernelUse KernelUseOf(const TrainConfig& config) {
  KernelUse use;
  use.kernels = config.trainer.kernels;
  use.device = config.trainer.device;
  use.dtype = config.student.dtype;
  use.max_len = config.data.max_prompt_length + config.data.max_response_length;
  use.top_k = static_cast<int32_t>(config.teacher.top_k);
  use.trains = true;
  return use;
}

// Returns the host memory left per rank. With a plan for a GPU, half of the available host memory
// counts as free.
int64_t HostBytesLeft(const EnginePlan& plan, int64_t num_local_ranks) {
  if (plan.budget.on_cpu()) return plan.budget.limit_bytes - plan.total_bytes;
  // The state that is offloaded to the host is not allocated yet.
  const int64_t own_bytes = AvailableMemoryBytes() / num_local_ranks;
  return std::max<int64_t>(0, own_bytes - HeldBytes(plan.lines, "cpu")) / 2;
}

}  // namespace

TrainingRun::TrainingRun(TrainConfig config, RunState* state, ProcessGroup* group)
    : config_(std::move(config)),
      run_state_(state),
      group_(group),
      run_(MakeTrainingRunOptions(config_, group)),
      guard_(config_.guard),
      rollout_log_(run_.run_dir(), config_.trainer.rollout_dumps,
                   BytesOfMib(config_.trainer.rollout_dumps_mb)),
      best_(config_.trainer.best_is == BestIs::kSmallest),
      wall_time_(start_, absl::Seconds(config_.trainer.max_wall_time_s)),
      save_interval_(start_, absl::Minutes(config_.trainer.save_minutes)) {}

absl::Status TrainingRun::SetUp(const StartMode& mode) {
  SetNumThreads(config_.trainer.num_threads, group_->local_world_size());
  // What only the configuration decides comes before anything is written.
  TAOPD_RETURN_IF_ERROR(AgreeOnFailure(group_, CheckConfig()));
  TAOPD_RETURN_IF_ERROR(AgreeOnFailure(group_, ChooseKernels(KernelUseOf(config_), [this] {
                                         return LoadModelConfig(config_.student.model);
                                       })));
  TAOPD_RETURN_IF_ERROR(AgreeOnPlan());
  run_.ShardGradients(config_.dist.ShardsGradients(group_->world_size()));
  run_.KeepAverage(KeepsAverage(config_.teacher, config_.teachers));
  const auto load_student = [this] {
    return LoadStudent(config_.student.model, config_.student.dtype, config_.trainer.device,
                       &config_.optimizer, config_.student.tokenizer, run_.optimizer_shard());
  };
  TAOPD_RETURN_IF_ERROR(run_.Start(mode, "student.model", load_student));
  TAOPD_RETURN_IF_ERROR(FindFinished());
  if (is_untouched_) return absl::OkStatus();
  if (absl::Status connected = AgreeOnFailure(group_, Connect()); !connected.ok())
    return run_.BesideChanges(connected);
  auto facts = FactsOfRun();
  if (absl::Status read = group_->AgreeOnStatus(facts.status()); !read.ok())
    return run_.BesideChanges(BadData(read));
  TAOPD_RETURN_IF_ERROR(run_.CheckFacts(*facts));
  // From here on there is something to save: a stop is for the loop.
  run_state_->PassStopsOn([group = group_](ExitCode code) { group->RequestStop(code); });
  TAOPD_RETURN_IF_ERROR(run_.OpenOutput());
  TAOPD_RETURN_IF_ERROR(AgreeOnFailure(group_, RestoreWatch()));
  if (const absl::Status best = RestoreBest(); !best.ok()) return WithExitCode(kExitInternal, best);
  PinCheckpoints();
  if (FileExists(run_.run_dir() + "/rollbacks.json")) {
    // Settle an intent that a crash has left.
    if (absl::Status settled = RecordRollback(rollbacks_, std::nullopt); !settled.ok())
      LogWarning("rollbacks.json is not written", {{"error", settled}});
  }
  output_.store(&run_.output());
  run_state_->Update([&](RunStatus& status) {
    status.run_name = config_.run.name;
    status.total_steps = config_.trainer.total_steps;
    status.step = state_.step;
    status.phase = TrainerPhase::kRunning;
    status.teacher = Health();
    status.plan_gb = plan_gb_;
    if (run_.resumed()) {
      status.last_checkpoint = run_.resumed_from();
      status.saved_step = state_.step;
    }
  });
  if (!is_root()) return absl::OkStatus();
  LogInfo(run_.resumed() ? "resumed" : "started",
          {{"run", config_.run.name},
           {"dir", run_.run_dir()},
           {"step", state_.step},
           {"parameters", student_.decoder->config().NumParameters()},
           {"prompts", prompts_.size()},
           {"objective", NameOf(config_.objective.Terms())},
           {"teacher", teacher_info_.model_name},
           {"ranks", group_->world_size()}});
  return absl::OkStatus();
}

absl::StatusOr<RunFacts> TrainingRun::FactsOfRun() const {
  const StudentConfig& student = config_.student;
  const DataUse use = {.sources_choose_teachers = !config_.teachers.empty(),
                       .has_teacher_prompts = config_.data.HasTeacherPrompt(),
                       .shares = shares_};
  TAOPD_ASSIGN_OR_RETURN(
      RunFacts facts,
      FactsOfData(prompts_, use, evaluates() ? config_.data.val : std::vector<std::string>(),
                  student_, student.tokenizer.empty() ? student.model : student.tokenizer));
  facts.push_back({"teacher_revision", teacher_info_.Identity(), false});
  return facts;
}

// Before the teacher is asked for: a finished run needs none.
absl::Status TrainingRun::FindFinished() {
  if (!run_.resumed() || run_.settings_differ()) return absl::OkStatus();
  const auto records = run_.ReadRecords();
  if (absl::Status read = group_->AgreeOnStatus(records.status()); !read.ok()) return BadData(read);
  for (const auto& [step, value] : records->values) best_.Observe(step, value);
  const bool is_evaluated = records->has_evaluation || config_.data.val.empty() ||
                            config_.eval.measure == EvalMeasure::kNone || !run_.is_last();
  const auto is_exported = run_.IsExported();
  if (!is_exported.ok()) return WithExitCode(kExitUnavailable, is_exported.status());
  is_untouched_ = is_finished() && is_evaluated && *is_exported;
  if (is_untouched_ && is_root()) {
    LogInfo("the run is finished and stays as it is",
            {{"dir", run_.run_dir()}, {"step", state_.step}, {"model", run_.run_dir() + "/model"}});
  }
  return absl::OkStatus();
}

absl::Status TrainingRun::CheckConfig() {
  TAOPD_RETURN_IF_ERROR(CheckNames());
  if (const auto device = ParseDevice(config_.trainer.device); device.ok() && device->is_cpu()) {
    if (absl::Status checked = CheckSettingsForCpu(config_); !checked.ok())
      return BadUsage(checked);
  }
  TAOPD_RETURN_IF_ERROR(PlanMemory());
  // Who computes again is short of memory.
  if (RecomputeOf(config_.trainer) != Recompute::kNone) ReturnFreedMemory();
  return absl::OkStatus();
}

absl::Status TrainingRun::Connect() {
  TAOPD_RETURN_IF_ERROR(LoadData());
  // Before a teacher is waited for, whose limit may be the same number.
  if (const auto fits = CheckLengthFits(config_, student_.decoder->config()); !fits.ok())
    return BadUsage(Annotate(fits, "rollout"));
  TAOPD_RETURN_IF_ERROR(ConnectTeacher());
  TAOPD_RETURN_IF_ERROR(StartEngine());
  return is_root() ? StartControl() : absl::OkStatus();
}

absl::Status TrainingRun::CheckNames() {
  if (HasSelfTeacher(config_.teacher, config_.teachers))
    self_teacher_.emplace(MakeSelfTeacherOptions(config_), &student_, group_);
  auto client = MakeTeacherClient(config_, self_teacher_ ? &*self_teacher_ : nullptr);
  if (!client.ok()) return BadUsage(client.status());
  teacher_ = *std::move(client);
  auto grader = grading::Grader::Make(config_.eval.grader, config_.eval.answer_pattern);
  if (!grader.ok()) return BadUsage(Annotate(grader.status(), "eval"));
  grader_ = *std::move(grader);
  if (absl::Status checked = CheckPromptSettings(config_.data, config_.eval); !checked.ok())
    return BadUsage(checked);
  if (absl::Status checked = CheckSiblingsStayTogether(config_, group_->world_size());
      !checked.ok()) {
    return BadUsage(checked);
  }
  return absl::OkStatus();
}

absl::Status TrainingRun::PlanMemory() {
  if (config_.trainer.async_save == AsyncSave::kOn)
    copy_limit_bytes_ = std::numeric_limits<int64_t>::max();
  if (config_.trainer.memory_plan == PlanPolicy::kOff) return absl::OkStatus();
  const auto budget = BudgetOf(config_, group_->local_world_size());
  EnginePlan refused;
  const RunPlanOptions options = {.num_ranks = group_->world_size(), .refused = &refused};
  const auto plan = budget.ok() ? ResolveAuto(&config_, config_.student.model, *budget, options)
                                : absl::StatusOr<EnginePlan>(budget.status());
  if (plan.ok()) {
    memory_plan_ = PlanText(*plan);
    plan_gb_ = static_cast<double>(plan->total_bytes) / static_cast<double>(int64_t{1} << 30);
    if (config_.trainer.async_save == AsyncSave::kAuto) {
      copy_limit_bytes_ = HostBytesLeft(*plan, group_->local_world_size());
    }
    LogInfo("memory plan", {{"device", plan->budget.device},
                            {"total", MemoryText(plan->total_bytes)},
                            {"limit", MemoryText(plan->budget.limit_bytes)},
                            {"kv_pool", MemoryText(plan->kv_pool_bytes())}});
    return absl::OkStatus();
  }
  if (absl::IsResourceExhausted(plan.status())) {
    memory_plan_ = PlanText(refused);
    if (config_.trainer.memory_plan == PlanPolicy::kRefuse)
      return WithExitCode(kExitOutOfMemory, plan.status());
    LogWarning("memory plan", {{"warning", plan.status()}});
  }
  // Whatever else is wrong with the model or its settings, what follows says it better.
  return absl::OkStatus();
}

// Ranks may have found different amounts of free memory. The smallest choice fits all.
absl::Status TrainingRun::AgreeOnPlan() {
  const auto smallest = group_->AgreeOnLargest(-config_.trainer.MicroBatchTokens());
  if (!smallest.ok()) return WithExitCode(kExitUnavailable, smallest.status());
  config_.trainer.micro_batch_tokens = -*smallest;
  const auto sharded =
      group_->AgreeOnLargest(config_.dist.gradients == GradientSums::kSharded ? 1 : 0);
  if (!sharded.ok()) return WithExitCode(kExitUnavailable, sharded.status());
  if (*sharded > 0) config_.dist.gradients = GradientSums::kSharded;
  return absl::OkStatus();
}

absl::Status TrainingRun::LoadData() {
  const auto model = PromptModelOf(config_.data, student_);
  if (!model.ok()) return BadData(Annotate(model.status(), "student.model"));
  auto training = LoadTrainingPrompts(config_.data, *model);
  if (!training.ok()) return BadData(Annotate(training.status(), "data.train"));
  auto evaluation = LoadEvalPrompts(config_.data, config_.eval, *model);
  if (!evaluation.ok()) return BadData(Annotate(evaluation.status(), "data.val"));
  absl::Status taught = CheckSourcesAreTaught(config_, training->dataset.records, "data.train");
  if (config_.eval.measure == EvalMeasure::kKl)
    taught.Update(CheckSourcesAreTaught(config_, evaluation->records, "data.val"));
  taught.Update(CheckSourcesOccur(config_, training->dataset.records));
  if (!taught.ok()) return BadUsage(taught);
  LogDataset("data.train", training->dataset);
  LogDataset("data.val", *evaluation);
  if (!config_.data.train_weights.empty()) shares_ = training->shares;
  problems_ = std::move(evaluation->records);
  if (absl::Status produced = CheckBestMetric(); !produced.ok()) return BadUsage(produced);
  order_.emplace(training->shares, DeriveSeed(config_.run.seed, "data"), config_.data.shuffle);
  data_metrics_ = {
      {"data/prompts", static_cast<double>(training->dataset.records.size())},
      {"data/overlong_dropped", static_cast<double>(training->dataset.num_overlong())},
      {"data/truncated", static_cast<double>(training->dataset.num_truncated())},
      {"data/unknown_bytes", static_cast<double>(training->dataset.num_unknown_bytes())},
      {"data/duplicates", static_cast<double>(training->dataset.num_duplicates())}};
  if (config_.data.HasTeacherPrompt()) {
    data_metrics_.emplace_back("data/teacher_prompt_missing",
                               training->dataset.num_teacher_prompt_missing());
  }
  prompts_ = std::move(training->dataset.records);
  const absl::Status position = order_->Restore(state_.epoch, state_.epoch_index);
  if (!position.ok()) return BadData(Annotate(position, "the checkpoint does not fit data.train"));
  return absl::OkStatus();
}

// The names of the evaluation's metrics are known once data.val is read.
absl::Status TrainingRun::CheckBestMetric() const {
  const std::string& name = config_.trainer.best_metric;
  if (name.empty()) return absl::OkStatus();
  if (!evaluates()) {
    return InvalidArgument("trainer.best_metric = ", name,
                           ": nothing is evaluated: eval.measure is none or data.val is empty");
  }
  const std::vector<std::string> known =
      config_.eval.measure == EvalMeasure::kKl
          ? std::vector<std::string>{"eval/kl_to_teacher", "eval/n"}
          : AccuracyMetricNames(config_.eval, problems_);
  if (std::find(known.begin(), known.end(), name) != known.end()) return absl::OkStatus();
  std::string names;
  for (const std::string& one : known) names += Concat(names.empty() ? "" : ", ", one);
  return InvalidArgument("trainer.best_metric = ", name,
                         ": is not among what the evaluations measure", DidYouMean(name, known),
                         ": ", names);
}

absl::Status TrainingRun::ConnectTeacher() {
  auto info = teacher_->Connect(absl::Seconds(config_.teacher.connect_timeout_s));
  // Waiting does not help against a revision that differs from the configuration's.
  if (absl::IsInvalidArgument(info.status())) return BadUsage(Annotate(info.status(), "teacher"));
  if (!info.ok()) return WithExitCode(kExitUnavailable, Annotate(info.status(), "teacher"));
  teacher_info_ = *std::move(info);
  const absl::Status fits = CheckTeacherFits(config_, *teacher_, teacher_info_, student_);
  if (!fits.ok()) return BadUsage(fits);
  return absl::OkStatus();
}

absl::Status TrainingRun::StartEngine() {
  auto engine = MakeRolloutEngine(config_, student_.decoder);
  if (!engine.ok()) return BadUsage(Annotate(engine.status(), "rollout"));
  engine_ = *std::move(engine);
  rollout_engine_.emplace(engine_.get());
  peak_flops_ = config_.trainer.peak_flops;
  if (peak_flops_ == 0 && student_.decoder->device().is_cpu()) {
    peak_flops_ = MeasurePeakFlops(student_.decoder->lm_head().scalar_type());
  }
  context_.config = &config_;
  context_.student = student_.decoder.get();
  context_.optimizer = student_.optimizer.get();
  context_.group = group_;
  context_.shares = *Shares::Make(config_.dist.deterministic ? config_.dist.shares : 0,
                                  group_->rank(), group_->world_size());
  context_.rollout_engine = &*rollout_engine_;
  context_.teacher = teacher_.get();
  if (config_.data.HasTeacherPrompt()) {
    teacher_views_ = MakeTeacherViewOptions(config_, student_, *grader_);
    context_.teacher_views = &teacher_views_;
  }
  context_.head = MakeHeadOptions(config_);
  context_.aggregation = config_.objective.aggregation;
  context_.on_wait = [this] { return OnWait(); };
  context_.stop_requested = [this] { return run_state_->stop_requested(); };
  context_.stop_grace = absl::Seconds(config_.trainer.stop_grace_s);
  context_.on_bad_batch = [this](const BadBatch& batch) {
    const absl::Status written =
        WriteBadBatch(batch, run_.run_dir() + "/bad_batches", config_.trainer.max_bad_batches);
    if (!written.ok()) LogWarning("a skipped mini-batch is not written", {{"error", written}});
  };
  return absl::OkStatus();
}

TeacherHealth TrainingRun::Health() const {
  const TeacherClientStats stats = teacher_->stats();
  return {teacher_info_.model_name, stats.waiting,   stats.requests, stats.retries,
          stats.failures,           stats.in_flight, stats.queued};
}

absl::Status TrainingRun::OnWait() {
  TAOPD_RETURN_IF_ERROR(group_->health());
  const TeacherHealth health = Health();
  const bool waiting = health.waiting;
  run_state_->Update([&](RunStatus& status) {
    status.teacher = health;
    status.phase = waiting ? TrainerPhase::kWaitingForTeacher : TrainerPhase::kRunning;
  });
  return run_state_->stop_requested() ? absl::CancelledError("asked to stop") : absl::OkStatus();
}

// A port that is in use must not cost an old run, so the server starts before there is a record:
// until then its metrics page is empty.
absl::Status TrainingRun::StartControl() {
  ControlServerOptions control;
  control.host = config_.trainer.host;
  control.http_port = config_.trainer.http_port;
  control.allowed_hosts = config_.trainer.allowed_hosts;
  if (const std::string& name = config_.trainer.token_env; !name.empty()) {
    const char* token = std::getenv(name.c_str());
    if (token == nullptr || *token == '\0') {
      return BadUsage(FailedPrecondition("trainer.token_env = ", name,
                                         ": the environment has no such variable, or it is empty"));
    }
    control.token = token;
  }
  ControlPages pages;
  pages.prometheus_text = [this] {
    const RunOutput* output = output_.load();
    return output != nullptr ? output->PrometheusText() : std::string();
  };
  pages.report_html = [dir = run_.run_dir()] { return report::MakeReport({dir}); };
  auto server = ControlServer::Start(control, run_state_, std::move(pages));
  if (!server.ok()) return BadUsage(Annotate(server.status(), "trainer.http_port"));
  control_ = *std::move(server);
  LogInfo("control", {{"http", Concat(config_.trainer.host, ":", control_->http_port())}});
  return absl::OkStatus();
}

}  // namespace taopd
