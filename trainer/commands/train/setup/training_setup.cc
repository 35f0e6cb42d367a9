#include "trainer/commands/train/setup/training_setup.h"

#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/engine/torch_engine.h"
#include "trainer/commands/process.h"
#include "trainer/commands/start_control.h"
#include "trainer/commands/teacher/self_teacher.h"
#include "trainer/commands/teacher/teacher_views.h"
#include "trainer/commands/teacher_fit.h"
#include "trainer/commands/train/plan/training_plan.h"
#include "trainer/commands/train/setup/ranks.h"
#include "trainer/commands/train/setup/remote_rollouts.h"
#include "trainer/commands/train/setup/rewards.h"
#include "trainer/commands/train/setup/training_data.h"
#include "trainer/step/timing/model_flops.h"

namespace taopd {
namespace {

absl::Status CheckNames(TrainingParts& parts) {
  if (HasSelfTeacher(parts.config.teacher, parts.config.teachers))
    parts.self_teacher.emplace(MakeSelfTeacherOptions(parts.config), &parts.student, parts.group);
  auto client =
      MakeTeacherClient(parts.config, parts.self_teacher ? &*parts.self_teacher : nullptr);
  if (!client.ok()) return BadUsage(client.status());
  parts.teacher = *std::move(client);
  auto rewards = MakeRewardSource(parts.config.reward);
  if (!rewards.ok()) return BadUsage(rewards.status());
  parts.reward_source = *std::move(rewards);
  if (absl::Status made = MakeRemoteRollouts(&parts); !made.ok()) return BadUsage(made);
  const EvalConfig& eval = parts.config.eval;
  if (!eval.IsJudgedByServer()) {
    auto grader = grading::Grader::Make(eval.grader, eval.answer_pattern);
    if (!grader.ok()) return BadUsage(Annotate(grader.status(), "eval"));
    parts.grader = *std::move(grader);
  }
  if (absl::Status checked = CheckPromptSettings(parts.config.data, parts.config.eval);
      !checked.ok())
    return BadUsage(checked);
  if (absl::Status checked = CheckGroupsStayTogether(parts.config, parts.group->world_size());
      !checked.ok()) {
    return BadUsage(checked);
  }
  return absl::OkStatus();
}

absl::Status CheckConfig(TrainingParts& parts) {
  TAOPD_RETURN_IF_ERROR(CheckNames(parts));
  if (const auto device = ParseDevice(parts.config.trainer.device);
      device.ok() && device->is_cpu()) {
    if (absl::Status checked = CheckSettingsForCpu(parts.config); !checked.ok())
      return BadUsage(checked);
  }
  TAOPD_RETURN_IF_ERROR(PlanMemory(parts));
  // Activations are recomputed only when memory is short.
  if (RecomputeOf(parts.config.trainer) != Recompute::kNone) ReturnFreedMemory();
  return absl::OkStatus();
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

absl::Status ConnectTeacher(TrainingParts& parts) {
  auto info = parts.teacher->Connect(absl::Seconds(parts.config.teacher.connect_timeout_s));
  // Waiting does not help against a revision that differs from the configuration's.
  if (absl::IsInvalidArgument(info.status())) return BadUsage(Annotate(info.status(), "teacher"));
  if (!info.ok()) return WithExitCode(kExitUnavailable, Annotate(info.status(), "teacher"));
  parts.teacher_info = *std::move(info);
  const absl::Status fits =
      CheckTeacherFits(parts.config, *parts.teacher, parts.teacher_info, parts.student);
  if (!fits.ok()) return BadUsage(fits);
  return absl::OkStatus();
}

absl::Status OnWait(TrainingParts& parts) {
  TAOPD_RETURN_IF_ERROR(parts.group->health());
  const TeacherHealth health = parts.Health();
  const bool waiting = health.waiting;
  parts.run_state->Update([&](RunStatus& status) {
    status.teacher = health;
    status.phase = waiting ? TrainerPhase::kWaitingForTeacher : TrainerPhase::kRunning;
  });
  return parts.run_state->stop_requested() ? absl::CancelledError("asked to stop")
                                           : absl::OkStatus();
}

absl::Status MakeGenerationWeights(TrainingParts& parts) {
  if (parts.config.trainer.async_steps == 0 || parts.config.rollout.IsElsewhere())
    return absl::OkStatus();
  auto weights = GenerationWeights::Make(parts.student.decoder.get());
  if (!weights.ok()) {
    const absl::Status refused = Annotate(weights.status(), "trainer.async_steps");
    return absl::IsInvalidArgument(refused) ? BadUsage(refused) : BadModel(refused);
  }
  parts.generation_weights = *std::move(weights);
  if (parts.self_teacher && parts.config.teacher.weights == TeacherWeights::kLive)
    parts.self_teacher->UseForLive(parts.generation_weights->decoder());
  return absl::OkStatus();
}

absl::Status StartEngine(TrainingParts& parts) {
  const std::unique_ptr<GenerationWeights>& ahead = parts.generation_weights;
  auto engine = MakeRolloutEngine(parts.config, ahead ? ahead->decoder() : parts.student.decoder);
  if (!engine.ok()) return BadUsage(Annotate(engine.status(), "rollout"));
  parts.engine = *std::move(engine);
  const std::function<int64_t()> version = [&ahead] { return ahead->version(); };
  parts.rollout_engine.emplace(parts.engine.get(), ahead ? version : nullptr);
  if (parts.evaluates() && parts.config.eval.mode == EvalMode::kBeside) {
    auto snapshot =
        EvaluationSnapshot::Make(parts.config, parts.student.decoder.get(), parts.engine.get());
    if (!snapshot.ok()) return BadUsage(Annotate(snapshot.status(), "eval.mode = beside"));
    parts.evaluation_snapshot = *std::move(snapshot);
  }
  parts.peak_flops = parts.config.trainer.peak_flops;
  if (parts.peak_flops == 0 && parts.student.decoder->device().is_cpu()) {
    parts.peak_flops = MeasurePeakFlops(parts.student.decoder->lm_head().scalar_type());
  }
  return absl::OkStatus();
}

void FillContext(TrainingParts& parts) {
  StepContext& context = parts.context;
  context.config = &parts.config;
  context.student = parts.student.decoder.get();
  context.optimizer = parts.student.optimizer.get();
  context.group = parts.group;
  context.shares = *Shares::Make(parts.config.dist.deterministic ? parts.config.dist.shares : 0,
                                 parts.group->rank(), parts.group->world_size());
  context.rollout_engine = &*parts.rollout_engine;
  if (parts.remote_rollouts != nullptr) context.rollout_engine = parts.remote_rollouts.get();
  context.teacher = parts.teacher.get();
  if (parts.config.data.HasTeacherPrompt()) {
    parts.teacher_views = MakeTeacherViewOptions(parts.config, parts.student, parts.grader.get());
    context.teacher_views = &parts.teacher_views;
  }
  if (parts.reward_source != nullptr) {
    parts.step_rewards =
        MakeStepRewardOptions(parts.config.reward, parts.student, parts.reward_source.get());
    context.rewards = &parts.step_rewards;
  }
  context.head = MakeHeadOptions(parts.config);
  context.aggregation = parts.config.objective.aggregation;
  context.on_wait = [&parts] { return OnWait(parts); };
  context.stop_requested = [&parts] {
    parts.run_state->Progress();  // it is asked before each micro-batch
    return parts.run_state->stop_requested();
  };
  context.stop_grace = absl::Seconds(parts.config.trainer.stop_grace_s);
  context.on_bad_batch = [&parts](const BadBatch& batch) {
    const absl::Status written = WriteBadBatch(batch, parts.run.run_dir() + "/bad_batches",
                                               parts.config.trainer.max_bad_batches);
    if (!written.ok()) LogWarning("a skipped mini-batch is not written", {{"error", written}});
  };
}

// A port that is in use must not cost an old run, so the server starts before there is a record:
// until then its metrics page is empty.
absl::Status StartControl(TrainingParts& parts) {
  ControlPages pages;
  pages.prometheus_text = [&parts] {
    const RunOutput* output = parts.output.load();
    if (output == nullptr) return std::string();
    // An alert on runs that have failed leaves out what a person has stopped.
    std::string text = Concat(output->PrometheusText(),
                              "# TYPE taopd_trainer_stop_code gauge\ntaopd_trainer_stop_code ",
                              static_cast<int>(parts.run_state->stop_code()), "\n");
    if (parts.remote_rollouts != nullptr) {  // by which the servers of rollouts are scaled
      text += Concat(
          "# TYPE taopd_trainer_rollouts_unfinished gauge\ntaopd_trainer_rollouts_unfinished ",
          parts.remote_rollouts->stats().num_unfinished, "\n");
    }
    return text;
  };
  pages.health = [&parts] { return parts.liveness->Check(); };
  auto server = StartControlServer(parts.config.trainer, parts.run.run_dir(), parts.run_state,
                                   std::move(pages));
  if (!server.ok()) return server.status();
  parts.control = *std::move(server);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckAndPlan(TrainingParts* parts) {
  SetNumThreads(parts->config.trainer.num_threads, parts->group->local_world_size());
  // The checks of the configuration alone come before anything is written.
  TAOPD_RETURN_IF_ERROR(AgreeOnFailure(parts->group, CheckConfig(*parts)));
  const auto model = [parts] { return LoadModelConfig(parts->config.student.model); };
  TAOPD_RETURN_IF_ERROR(
      AgreeOnFailure(parts->group, ChooseKernels(KernelUseOf(parts->config), model)));
  return AgreeOnPlan(*parts);
}

absl::Status LoadStudentOfRun(const StartMode& mode, TrainingParts* parts) {
  const TrainConfig& config = parts->config;
  CheckpointedRun& run = parts->run;
  run.ShardGradients(config.dist.ShardsGradients(parts->group->world_size()));
  run.KeepAverage(KeepsAverage(config.teacher, config.teachers));
  const auto load_student = [&] {
    return LoadStudent(config.student.model, config.student.dtype, config.trainer.device,
                       &config.optimizer, config.student.tokenizer, run.optimizer_shard(),
                       config.student.lora.Options(config.run.seed));
  };
  return run.Start(mode, "student.model", load_student);
}

absl::Status Connect(TrainingParts* parts) {
  TAOPD_RETURN_IF_ERROR(LoadData(*parts));
  // Before a teacher is waited for, whose limit may be the same number.
  const absl::Status fits = CheckLengthFits(parts->config, parts->student.decoder->config());
  if (!fits.ok()) return BadUsage(Annotate(fits, "rollout"));
  TAOPD_RETURN_IF_ERROR(MakeGenerationWeights(*parts));
  TAOPD_RETURN_IF_ERROR(ConnectTeacher(*parts));
  const absl::Status judged = ConnectRewards(parts->config.reward, parts->student, parts->prompts,
                                             parts->reward_source.get());
  if (absl::IsInvalidArgument(judged)) return BadUsage(judged);
  if (!judged.ok()) return WithExitCode(kExitUnavailable, judged);
  TAOPD_RETURN_IF_ERROR(StartEngine(*parts));
  TAOPD_RETURN_IF_ERROR(ConnectRemoteRollouts(parts));
  FillContext(*parts);
  parts->liveness.emplace(absl::Seconds(parts->config.trainer.stall_timeout_s),
                          [parts] { return parts->CurrentActivity(); });
  return parts->is_root() ? StartControl(*parts) : absl::OkStatus();
}

}  // namespace taopd
