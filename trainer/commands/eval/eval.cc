// The subcommand eval: evaluates a model in this process or on a server on data.val.

#include <algorithm>

#include "common/base/log.h"
#include "common/engine/torch_engine.h"
#include "trainer/commands/commands.h"
#include "trainer/commands/configured_parts.h"
#include "trainer/commands/eval/evaluation_identity.h"
#include "trainer/commands/eval/evaluation_report.h"
#include "trainer/commands/measure_student.h"
#include "trainer/commands/process.h"
#include "trainer/commands/teacher/self_teacher.h"
#include "trainer/commands/teacher_fit.h"
#include "trainer/eval/local_source.h"
#include "trainer/eval/openai/openai_source.h"

namespace taopd {
namespace {

// Logs progress from time to time, not for every response.
class Progress {
 public:
  void operator()(int64_t num_done, int64_t num_tasks, int64_t num_correct) {
    const absl::Time now = absl::Now();
    if (now - last_ < absl::Seconds(10) && num_done < num_tasks) return;
    last_ = now;
    const double seconds = absl::ToDoubleSeconds(now - start_);
    if (first_ < 0) first_ = num_done - 1;
    LogInfo("evaluating",
            {{"responses", Concat(num_done, "/", num_tasks)},
             {"correct", static_cast<double>(num_correct) / static_cast<double>(num_done)},
             {"eta_s", seconds / static_cast<double>(num_done - first_) *
                           static_cast<double>(num_tasks - num_done)}});
  }

 private:
  const absl::Time start_ = absl::Now();
  absl::Time last_ = start_;
  int64_t first_ = -1;  // number of responses before this process
};

absl::Status Failed(const absl::Status& status) {
  const bool away = absl::IsUnavailable(status) || absl::IsPermissionDenied(status);
  return WithExitCode(away ? kExitUnavailable : kExitData, status);
}

absl::Status Reported(const absl::Status& status) {
  if (!status.ok()) return BadUsage(status);
  return absl::OkStatus();
}

// Grades what `source` gives, with the journal.
absl::Status Measure(const TrainConfig& config, const EvalRequest& request,
                     const std::string& model, const PromptDataset& problems,
                     ResponseSource* source) {
  auto evaluation = DescribeEvaluation(config, request, model);
  if (!evaluation.ok()) return BadData(evaluation.status());
  auto journal = EvalJournal::Open(ResponsesPath(request), *evaluation, request.overwrite);
  if (!journal.ok()) return BadUsage(journal.status());
  if (!journal->rows().empty()) {
    LogInfo("resumed", {{"journal", journal->path()}, {"responses", journal->rows().size()}});
  }
  AccuracyRun run;
  run.config = &config.eval;
  run.seed = config.run.seed;
  run.problems = &problems.records;
  run.source = source;
  run.journal = &*journal;
  run.on_progress = [progress = Progress()](int64_t done, int64_t tasks, int64_t correct) mutable {
    progress(done, tasks, correct);
  };
  auto result = EvaluateAccuracy(run);
  if (!result.ok()) return Failed(result.status());
  return Reported(ReportEvaluation(config, request, model, problems, *result));
}

absl::Status EvaluateEndpoint(const TrainConfig& config, const EvalRequest& request) {
  if (config.eval.measure != EvalMeasure::kAccuracy)
    return BadUsage(InvalidArgument("--endpoint needs eval.measure accuracy"));
  if (config.data.truncation != Truncation::kError || config.data.filter_overlong_prompts) {
    LogWarning(
        "prompts go to the server whole: data.truncation and data.filter_overlong_prompts are for "
        "a model in this process");
  }
  PromptModel model;
  model.renders_itself = true;
  auto problems = LoadEvalPrompts(config.data, config.eval, model);
  if (!problems.ok()) return BadData(Annotate(problems.status(), "data.val"));
  if (problems->records.empty())
    return BadUsage(InvalidArgument("nothing to evaluate: data.val is empty"));
  LogDataset("data.val", *problems);
  OpenAiOptions options;
  options.url = request.endpoint;
  options.model = request.model_dir;
  if (absl::Status key = ReadApiKey(request.api_key_env, &options); !key.ok()) return BadUsage(key);
  options.concurrency = request.concurrency;
  options.timeout_s = request.timeout_s;
  options.max_retries = request.max_retries;
  options.chat_template_kwargs = *ParseChatTemplateKwargs(config.data.chat_template_kwargs);
  auto source = OpenAiSource::Connect(options);
  if (!source.ok()) {
    return absl::IsInvalidArgument(source.status()) ? BadUsage(source.status())
                                                    : Failed(source.status());
  }
  LogInfo("endpoint", {{"url", request.endpoint},
                       {"model", (*source)->model()},
                       {"concurrency", options.concurrency}});
  auto failure = Measure(config, request, (*source)->model(), *problems, source->get());
  if ((*source)->num_retries() > 0)
    LogWarning("requests were repeated", {{"count", (*source)->num_retries()}});
  return failure;
}

// The distance of `student` to the configured teacher.
absl::Status EvaluateDistance(const TrainConfig& config, const EvalRequest& request,
                              const std::string& model_dir, const PromptDataset& problems,
                              Student* student) {
  if (KeepsAverage(config.teacher, config.teachers)) {
    return BadUsage(InvalidArgument("teacher.weights = ", WordOf(config.teacher.weights),
                                    ", teacher.refresh_every = ", config.teacher.refresh_every,
                                    ": only a run has these weights; use start or live"));
  }
  const std::unique_ptr<ProcessGroup> alone = ProcessGroup::Alone();
  SelfTeacher self(MakeSelfTeacherOptions(config), student, alone.get());
  auto client = MakeTeacherClient(config, &self);
  if (!client.ok()) return BadUsage(client.status());
  if (absl::Status taught = CheckSourcesAreTaught(config, problems.records, "data.val");
      !taught.ok()) {
    return BadUsage(taught);
  }
  auto info = (*client)->Connect(absl::Seconds(config.teacher.connect_timeout_s));
  if (!info.ok()) return WithExitCode(kExitUnavailable, Annotate(info.status(), "teacher"));
  if (absl::Status fits = CheckTeacherFits(config, **client, *info, *student); !fits.ok())
    return BadUsage(fits);
  auto result = MeasureStudent(config, problems.records,
                               {.decoder = student->decoder.get(), .teacher = client->get()});
  if (!result.ok()) return Failed(result.status());
  return Reported(ReportEvaluation(config, request, model_dir, problems, *result));
}

// The accuracy of `student`, with an engine as long as this evaluation needs.
absl::Status EvaluateAnswers(const TrainConfig& config, const EvalRequest& request,
                             const std::string& model_dir, const PromptDataset& problems,
                             const Student& student) {
  TrainConfig sized = config;
  sized.data.max_response_length = 1;
  sized.eval.mode = EvalMode::kBlocking;
  sized.eval.num_prompts = static_cast<int64_t>(problems.records.size());
  sized.data.max_prompt_length = 1;
  for (const PromptRecord& problem : problems.records) {
    sized.data.max_prompt_length =
        std::max(sized.data.max_prompt_length, static_cast<int64_t>(problem.prompt_ids.size()));
  }
  auto engine = MakeRolloutEngine(sized, student.decoder);
  if (!engine.ok()) return BadUsage(Annotate(engine.status(), "eval"));
  LocalRolloutEngine rollout_engine(engine->get());
  LocalSource source(&rollout_engine, student.tokenizer.get());
  return Measure(config, request, model_dir, problems, &source);
}

absl::Status EvaluateModel(const TrainConfig& config, const EvalRequest& request) {
  SetNumThreads(config.trainer.num_threads);
  const std::string model_dir =
      request.model_dir.empty() ? config.student.model : request.model_dir;
  KernelUse kernels;
  kernels.kernels = config.trainer.kernels;
  kernels.device = config.trainer.device;
  kernels.dtype = config.student.dtype;
  TAOPD_RETURN_IF_ERROR(ChooseKernels(kernels, [&] { return LoadModelConfig(model_dir); }));
  auto student = LoadStudent(model_dir, config.student.dtype, config.trainer.device, nullptr,
                             request.model_dir.empty() ? config.student.tokenizer : "");
  if (!student.ok()) return BadModel(student.status());
  auto prompt_model = PromptModelOf(config.data, *student);
  if (!prompt_model.ok()) return BadData(prompt_model.status());
  DataConfig data = config.data;
  std::string limit;  // where data.max_prompt_length comes from
  if (config.eval.measure == EvalMeasure::kAccuracy) {
    const int64_t positions = student->decoder->config().max_position_embeddings;
    const int64_t room = positions - config.eval.max_response_length;
    if (room < 1) {
      return BadUsage(InvalidArgument(
          "eval.max_response_length ", config.eval.max_response_length,
          " leaves no room for a prompt in the model's max_position_embeddings ", positions));
    }
    if (room < data.max_prompt_length) {
      data.max_prompt_length = room;
      limit = Concat(" (max_prompt_length: the model's max_position_embeddings ", positions,
                     " less eval.max_response_length ", config.eval.max_response_length, ")");
    }
  }
  auto problems = LoadEvalPrompts(data, config.eval, *prompt_model);
  if (!problems.ok()) return BadData(Annotate(problems.status(), "data.val" + limit));
  if (problems->records.empty()) {
    return BadUsage(
        InvalidArgument("nothing to evaluate: data.val is empty or eval.measure is none"));
  }
  LogDataset("data.val", *problems);
  return config.eval.measure == EvalMeasure::kKl
             ? EvaluateDistance(config, request, model_dir, *problems, &*student)
             : EvaluateAnswers(config, request, model_dir, *problems, *student);
}

}  // namespace

absl::Status RunEval(TrainConfig config, const EvalRequest& request) {
  if (absl::Status checked = CheckPromptSettings(config.data, config.eval); !checked.ok())
    return BadUsage(checked);
  return CatchExceptions([&] {
    return request.endpoint.empty() ? EvaluateModel(config, request)
                                    : EvaluateEndpoint(config, request);
  });
}

}  // namespace taopd
