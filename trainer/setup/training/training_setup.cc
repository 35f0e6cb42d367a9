#include "trainer/setup/training/training_setup.h"

#include <algorithm>
#include <limits>

#include "common/base/log.h"
#include "common/base/memory.h"
#include "trainer/eval/accuracy.h"
#include "trainer/reward/http_reward.h"
#include "trainer/setup/connect_teacher.h"
#include "trainer/setup/engine_options.h"
#include "trainer/setup/plan/memory_plan.h"
#include "trainer/setup/process.h"
#include "trainer/setup/prompts.h"
#include "trainer/setup/ranks.h"
#include "trainer/setup/start_control.h"
#include "trainer/setup/training/remote_rollouts.h"

namespace taopd {
namespace {

// Makes the source of rewards; null if there are none. Does not connect.
absl::StatusOr<std::unique_ptr<RewardSource>> MakeRewardSource(const RewardConfig& config) {
  if (!config.url.empty()) return HttpReward::Make(config);
  if (!config.grader.empty()) return MakeGraderReward(config);
  return std::unique_ptr<RewardSource>();
}

// Waits until `source`, which may be null, answers. Returns INVALID_ARGUMENT if the student has no
// tokenizer for the texts or no prompt has an answer for the grader, and the errors of the source.
absl::Status ConnectRewards(const RewardConfig& config, const Student& student,
                            const std::vector<PromptRecord>& prompts, RewardSource* source) {
  if (source == nullptr) return absl::OkStatus();
  if (student.tokenizer == nullptr) {
    return InvalidArgument(
        "reward: the text of a response needs a tokenizer.json in the student's directory");
  }
  const bool has_answer =
      std::ranges::any_of(prompts, [](const PromptRecord& one) { return !one.answer.empty(); });
  if (!config.grader.empty() && !has_answer) {
    return InvalidArgument("reward.grader = ", config.grader,
                           ": no row of data.train has an answer (data.answer_key)");
  }
  return Annotate(source->Connect(absl::Seconds(config.connect_timeout_s)), "reward");
}

// Returns INVALID_ARGUMENT if the responses to a prompt need each other, for {sibling} or for their
// rewards, but several ranks, or several of dist.shares, would generate them.
absl::Status CheckGroupsStayTogether(const TrainConfig& config, int64_t num_ranks) {
  if (!config.data.HasSibling() && !config.reward.IsOn()) return absl::OkStatus();
  const int64_t num_shares = config.dist.deterministic ? config.dist.shares : num_ranks;
  if (config.trainer.mini_batch_size % num_shares == 0) return absl::OkStatus();
  return InvalidArgument("trainer.mini_batch_size = ", config.trainer.mini_batch_size,
                         config.data.HasSibling()
                             ? ": {sibling} in data.teacher_prompt_template needs"
                             : ": the section reward needs",
                         " all responses to a prompt on one rank, so it must be a multiple of the ",
                         num_shares, config.dist.deterministic ? " dist.shares" : " ranks");
}

absl::Status MakeConfiguredParts(TrainingParts& parts) {
  if (HasSelfTeacher(parts.config.teacher, parts.config.teachers))
    parts.teacher.self.emplace(MakeSelfTeacherOptions(parts.config), &parts.run.student(),
                               parts.group);
  TAOPD_ASSIGN_OR_RETURN(parts.teacher.client,
                         BadUsage(MakeTeacherClient(
                             parts.config, parts.teacher.self ? &*parts.teacher.self : nullptr)));
  TAOPD_ASSIGN_OR_RETURN(parts.rewards.source, BadUsage(MakeRewardSource(parts.config.reward)));
  TAOPD_RETURN_IF_ERROR(BadUsage(MakeRemoteRollouts(&parts)));
  const EvalConfig& eval = parts.config.eval;
  if (!eval.IsJudgedByServer()) {
    TAOPD_ASSIGN_OR_RETURN(
        parts.data.grader,
        BadUsage(Annotate(grading::Grader::Make(eval.grader, eval.answer_pattern), "eval")));
  }
  TAOPD_RETURN_IF_ERROR(BadUsage(CheckPromptSettings(parts.config.data, eval)));
  return BadUsage(CheckGroupsStayTogether(parts.config, parts.group->world_size()));
}

// Returns the host memory left per rank. With a plan for a GPU, half of the available host memory
// counts as free.
int64_t HostBytesLeft(const EnginePlan& plan, int64_t num_local_ranks) {
  if (plan.budget.on_cpu()) return plan.budget.limit_bytes - plan.total_bytes;
  // The state that is offloaded to the host is not allocated yet.
  const int64_t own_bytes = AvailableMemoryBytes() / num_local_ranks;
  return std::max<int64_t>(0, own_bytes - HeldBytes(plan.lines, "cpu")) / 2;
}

// Plans the memory and chooses the settings that are `auto`. Fails with kExitOutOfMemory if the run
// does not fit and trainer.memory_plan is refuse.
absl::Status PlanMemory(TrainingParts& parts) {
  if (parts.config.trainer.async_save == AsyncSave::kOn)
    parts.memory.copy_limit_bytes = std::numeric_limits<int64_t>::max();
  if (parts.config.trainer.memory_plan == PlanPolicy::kOff) return absl::OkStatus();
  const auto budget = BudgetOf(parts.config, parts.group->local_world_size());
  EnginePlan refused;
  const RunPlanOptions options = {.num_ranks = parts.group->world_size(), .refused = &refused};
  const auto plan = budget.ok()
                        ? ResolveAuto(&parts.config, parts.config.student.model, *budget, options)
                        : absl::StatusOr<EnginePlan>(budget.status());
  if (plan.ok()) {
    parts.memory.table = PlanText(*plan);
    parts.memory.gb =
        static_cast<double>(plan->total_bytes) / static_cast<double>(int64_t{1} << 30);
    if (parts.config.trainer.async_save == AsyncSave::kAuto) {
      parts.memory.copy_limit_bytes = HostBytesLeft(*plan, parts.group->local_world_size());
    }
    LogInfo("memory plan", {{"device", plan->budget.device},
                            {"total", MemoryText(plan->total_bytes)},
                            {"limit", MemoryText(plan->budget.limit_bytes)},
                            {"kv_pool", MemoryText(plan->kv_pool_bytes())}});
    return absl::OkStatus();
  }
  if (absl::IsResourceExhausted(plan.status())) {
    parts.memory.table = PlanText(refused);
    if (parts.config.trainer.memory_plan == PlanPolicy::kRefuse)
      return WithExitCode(kExitOutOfMemory, plan.status());
    LogWarning("memory plan", {{"warning", plan.status()}});
  }
  // Other errors are left to the steps that load the model, whose messages are better.
  return absl::OkStatus();
}

// Gives all ranks the choice that takes the least memory, because ranks may have found different
// amounts of free memory.
absl::Status AgreeOnPlan(TrainingParts& parts) {
  const auto largest = [&parts](int64_t mine) {
    return WithExitCode(kExitUnavailable, parts.group->AgreeOnLargest(mine));
  };
  TAOPD_ASSIGN_OR_RETURN(const int64_t smallest, largest(-parts.config.trainer.MicroBatchTokens()));
  parts.config.trainer.micro_batch_tokens = -smallest;
  TAOPD_ASSIGN_OR_RETURN(const int64_t sharded,
                         largest(parts.config.dist.gradients == GradientSums::kSharded ? 1 : 0));
  if (sharded > 0) parts.config.dist.gradients = GradientSums::kSharded;
  return absl::OkStatus();
}

// Makes the checks and the plan that need no other rank.
absl::Status CheckAndPlanAlone(TrainingParts& parts) {
  TAOPD_RETURN_IF_ERROR(MakeConfiguredParts(parts));
  if (const auto device = ParseDevice(parts.config.trainer.device);
      device.ok() && device->is_cpu()) {
    TAOPD_RETURN_IF_ERROR(BadUsage(CheckSettingsForCpu(parts.config)));
  }
  TAOPD_RETURN_IF_ERROR(PlanMemory(parts));
  // Activations are recomputed only when memory is short.
  if (RecomputeOf(parts.config.trainer) != Recompute::kNone) ReturnFreedMemory();
  return absl::OkStatus();
}

KernelUse KernelUseOf(const TrainConfig& config) {
  return {.kernels = config.trainer.kernels,
          .device = config.trainer.device,
          .dtype = config.student.dtype,
          .max_len = config.data.max_prompt_length + config.data.max_response_length,
          .top_k = static_cast<int32_t>(config.teacher.top_k),
          .trains = true};
}

absl::Status OnWait(TrainingParts& parts) {
  TAOPD_RETURN_IF_ERROR(parts.group->health());
  const TeacherHealth health = parts.teacher.Health();
  const bool waiting = health.waiting;
  parts.run_control->Update([&](RunStatus& status) {
    status.teacher = health;
    status.phase = waiting ? TrainerPhase::kWaitingForTeacher : TrainerPhase::kRunning;
  });
  return parts.run_control->stop_requested() ? absl::CancelledError("asked to stop")
                                             : absl::OkStatus();
}

absl::Status MakeGenerationWeights(TrainingParts& parts) {
  if (parts.config.trainer.async_steps == 0 || parts.config.rollout.IsElsewhere())
    return absl::OkStatus();
  auto weights = GenerationWeights::Make(parts.run.student().decoder.get());
  if (!weights.ok()) {
    const absl::Status refused = Annotate(weights.status(), "trainer.async_steps");
    return absl::IsInvalidArgument(refused) ? BadUsage(refused) : BadModel(refused);
  }
  parts.rollouts.generation_weights = *std::move(weights);
  if (parts.teacher.self && parts.config.teacher.weights == TeacherWeights::kLive)
    parts.teacher.self->UseForLive(parts.rollouts.generation_weights->decoder());
  return absl::OkStatus();
}

absl::Status StartEngine(TrainingParts& parts) {
  const std::unique_ptr<GenerationWeights>& ahead = parts.rollouts.generation_weights;
  TAOPD_ASSIGN_OR_RETURN(
      parts.rollouts.engine,
      BadUsage(
          MakeRolloutEngine(parts.config, ahead ? ahead->decoder() : parts.run.student().decoder)));
  const std::function<int64_t()> version = [&ahead] { return ahead->version(); };
  parts.rollouts.local.emplace(parts.rollouts.engine.get(), ahead ? version : nullptr);
  if (parts.data.IsEvaluated(parts.config.eval) && parts.config.eval.mode == EvalMode::kBeside) {
    TAOPD_ASSIGN_OR_RETURN(
        parts.rollouts.evaluation_snapshot,
        BadUsage(Annotate(EvaluationSnapshot::Make(parts.config, parts.run.student().decoder.get(),
                                                   parts.rollouts.engine.get()),
                          "eval.mode = beside")));
  }
  return absl::OkStatus();
}

// Returns the options of a step's views. A response to a row without an answer is never right.
// `student` and `grader` must outlive the result. `grader` may be null without {sibling}.
TeacherViewOptions MakeTeacherViewOptions(const TrainConfig& config, const Student& student,
                                          const grading::Grader* grader) {
  TeacherViewOptions options;
  options.tokenizer = student.tokenizer.get();
  options.max_prompt_length = config.data.MaxTeacherPromptLength();
  options.skips_missing = config.data.teacher_prompt_missing == MissingTeacherPrompt::kSkip;
  options.is_correct = [eval = config.eval, tokenizer = options.tokenizer, grader](
                           const PromptRecord& prompt, const Rollout& rollout) {
    if (prompt.answer.empty()) return false;
    const bool truncated = rollout.finish != FinishReason::kStop;
    return GradeResponse(*grader, eval, tokenizer->Decode(rollout.response_ids), truncated, prompt)
        .correct;
  };
  return options;
}

void FillContext(TrainingParts& parts) {
  StepContext& context = parts.step_context;
  context.config = &parts.config;
  context.student = parts.run.student().decoder.get();
  context.optimizer = parts.run.student().optimizer.get();
  context.group = parts.group;
  context.shares = *Shares::Make(parts.config.dist.deterministic ? parts.config.dist.shares : 0,
                                 parts.group->rank(), parts.group->world_size());
  context.rollout_engine = &*parts.rollouts.local;
  if (parts.rollouts.servers != nullptr) context.rollout_engine = parts.rollouts.servers.get();
  context.teacher = parts.teacher.client.get();
  if (parts.config.data.HasTeacherPrompt()) {
    parts.teacher_views =
        MakeTeacherViewOptions(parts.config, parts.run.student(), parts.data.grader.get());
    context.teacher_views = &parts.teacher_views;
  }
  if (parts.rewards.source != nullptr) {
    const RewardConfig& reward = parts.config.reward;
    parts.rewards.options = {parts.rewards.source.get(), parts.run.student().tokenizer.get(),
                             reward.baseline, reward.scale};
    context.rewards = &parts.rewards.options;
  }
  context.head = MakeHeadOptions(parts.config);
  context.aggregation = parts.config.objective.aggregation;
  context.on_wait = [&parts] { return OnWait(parts); };
  context.stop_requested = [&parts] {
    parts.run_control->Progress();  // a step asks before each micro-batch
    return parts.run_control->stop_requested();
  };
  context.stop_grace = absl::Seconds(parts.config.trainer.stop_grace_s);
  context.on_bad_batch = [&parts](const BadBatch& batch) {
    const absl::Status written = WriteBadBatch(batch, parts.run.run_dir() + "/bad_batches",
                                               parts.config.trainer.max_bad_batches);
    if (!written.ok())
      LogWarning("a skipped mini-batch could not be written", {{"error", written}});
  };
}

// A port that is in use must not destroy an old run, so the server starts before the first record.
// Until then its page has no metrics of the run.
absl::Status StartControl(TrainingParts& parts) {
  ControlPages pages;
  pages.prometheus_text = [&parts] {
    // An alert on failed runs leaves out runs that a person has stopped.
    std::string text = Concat(parts.run.PrometheusText(),
                              "# TYPE taopd_trainer_stop_code gauge\ntaopd_trainer_stop_code ",
                              static_cast<int>(parts.run_control->stop_code()), "\n");
    if (parts.rollouts.servers != nullptr) {  // an autoscaler of the servers reads it
      text += Concat(
          "# TYPE taopd_trainer_rollouts_unfinished gauge\ntaopd_trainer_rollouts_unfinished ",
          parts.rollouts.servers->stats().num_unfinished, "\n");
    }
    return text;
  };
  pages.health = [&parts] { return parts.control.liveness->Check(); };
  TAOPD_ASSIGN_OR_RETURN(parts.control.server,
                         StartControlServer(parts.config.trainer, parts.run.run_dir(),
                                            parts.run_control, std::move(pages)));
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckAndPlan(TrainingParts* parts) {
  SetNumThreads(parts->config.trainer.num_threads, parts->group->local_world_size());
  // The checks of the configuration alone come before anything is written.
  TAOPD_RETURN_IF_ERROR(AgreeOnFailure(parts->group, CheckAndPlanAlone(*parts)));
  const auto model = [parts] { return LoadModelConfig(parts->config.student.model); };
  TAOPD_RETURN_IF_ERROR(
      AgreeOnFailure(parts->group, ChooseKernels(KernelUseOf(parts->config), model)));
  return AgreeOnPlan(*parts);
}

absl::Status LoadStudentOfRun(const StartMode& mode, TrainingParts* parts) {
  const TrainConfig& config = parts->config;
  const auto load_student = [&](const AdamWOptions& shard) {
    return LoadStudent(config.student.model, config.student.dtype, config.trainer.device,
                       &config.optimizer, config.student.tokenizer, shard,
                       config.student.lora.Options(config.run.seed));
  };
  return parts->run.Start(mode, {"student.model", load_student,
                                 config.dist.ShardsGradients(parts->group->world_size())});
}

absl::Status Connect(TrainingParts* parts) {
  TAOPD_RETURN_IF_ERROR(LoadData(parts));
  // This comes before the wait for the teacher, whose limit may be the same number.
  TAOPD_RETURN_IF_ERROR(BadUsage(
      Annotate(CheckLengthFits(parts->config, parts->run.student().decoder->config()), "rollout")));
  TAOPD_RETURN_IF_ERROR(MakeGenerationWeights(*parts));
  TAOPD_ASSIGN_OR_RETURN(parts->teacher.info,
                         ConnectTeacher(parts->config, parts->teacher.client.get()));
  TAOPD_RETURN_IF_ERROR(BadUsage(CheckTeacherFits(parts->config, *parts->teacher.client,
                                                  parts->teacher.info, parts->run.student())));
  const absl::Status judged = ConnectRewards(parts->config.reward, parts->run.student(),
                                             parts->data.prompts, parts->rewards.source.get());
  TAOPD_RETURN_IF_ERROR(
      WithExitCode(absl::IsInvalidArgument(judged) ? kExitUsage : kExitUnavailable, judged));
  TAOPD_RETURN_IF_ERROR(StartEngine(*parts));
  TAOPD_RETURN_IF_ERROR(ConnectRemoteRollouts(parts));
  FillContext(*parts);
  parts->control.liveness.emplace(absl::Seconds(parts->config.trainer.stall_timeout_s),
                                  [parts] { return parts->CurrentActivity(); });
  return parts->group->is_root() ? StartControl(*parts) : absl::OkStatus();
}

}  // namespace taopd
