// The subcommand eval: evaluates a model in this process or on a server on data.val.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "common/base/log.h"
#include "common/engine/torch_engine.h"
#include "trainer/cli/config_flags.h"
#include "trainer/cli/subcommand.h"
#include "trainer/commands/eval/evaluation_files.h"
#include "trainer/eval/local_source.h"
#include "trainer/eval/measure_student.h"
#include "trainer/eval/openai/openai_source.h"
#include "trainer/setup/connect_teacher.h"
#include "trainer/setup/engine_options.h"
#include "trainer/setup/process.h"
#include "trainer/setup/prompts.h"

namespace taopd {
namespace {

// Logs progress from time to time, not for every response.
class ProgressLog {
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

// Gives a failed evaluation its code: kExitUnavailable if a server is away, else kExitData.
template <typename Result>
Result FromMeasure(Result result) {
  const bool is_away = IsServerAway(ToStatus(result));
  return WithExitCode(is_away ? kExitUnavailable : kExitData, std::move(result));
}

// Grades the responses of `source` and records them in the journal. `tokenizer` may be null.
absl::Status GradeResponses(const TrainConfig& config, const EvalRequest& request,
                            const std::string& model, const PromptDataset& problems,
                            const Tokenizer* tokenizer, ResponseSource* source) {
  TAOPD_ASSIGN_OR_RETURN(const auto evaluation,
                         BadData(DescribeEvaluation(config, request, model)));
  TAOPD_ASSIGN_OR_RETURN(
      EvalJournal journal,
      BadUsage(EvalJournal::Open(request.ResponsesPath(), evaluation, request.overwrite)));
  if (!journal.rows().empty())
    LogInfo("resumed", {{"journal", journal.path()}, {"responses", journal.rows().size()}});
  AccuracyRun run = {.config = &config.eval,
                     .seed = static_cast<uint64_t>(config.run.seed),
                     .problems = &problems.records,
                     .source = source,
                     .tokenizer = tokenizer,
                     .journal = &journal};
  run.on_progress = ProgressLog();
  TAOPD_ASSIGN_OR_RETURN(const EvalResult result, FromMeasure(EvaluateAccuracy(run)));
  return BadUsage(ReportEvaluation(config, request, model, problems, result));
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
  TAOPD_ASSIGN_OR_RETURN(
      const PromptDataset problems,
      BadData(Annotate(LoadEvalPrompts(config.data, config.eval, model), "data.val")));
  if (problems.records.empty())
    return BadUsage(InvalidArgument("nothing to evaluate: data.val is empty"));
  LogDataset("data.val", problems);
  OpenAiOptions options = request.server;
  options.model = request.model_dir;
  TAOPD_RETURN_IF_ERROR(BadUsage(ReadApiKey(request.server.api_key_env, &options)));
  options.chat_template_kwargs = *ParseChatTemplateKwargs(config.data.chat_template_kwargs);
  auto connected = OpenAiSource::Connect(options);
  if (absl::IsInvalidArgument(connected.status())) return BadUsage(connected.status());
  TAOPD_ASSIGN_OR_RETURN(const auto source, FromMeasure(std::move(connected)));
  LogInfo("endpoint", {{"url", request.server.url},
                       {"model", source->model()},
                       {"concurrency", options.concurrency}});
  const absl::Status measured = GradeResponses(config, request, source->model(), problems,
                                               /*tokenizer=*/nullptr, source.get());
  if (source->num_retries() > 0)
    LogWarning("requests were repeated", {{"count", source->num_retries()}});
  return measured;
}

absl::Status EvaluateKlToTeacher(const TrainConfig& config, const EvalRequest& request,
                                 const std::string& model_dir, const PromptDataset& problems,
                                 Student* student) {
  if (KeepsAverage(config.teacher, config.teachers)) {
    return BadUsage(InvalidArgument("teacher.weights = ", NameOf(config.teacher.weights),
                                    ", teacher.refresh_every = ", config.teacher.refresh_every,
                                    ": only a run has these weights; use start or live"));
  }
  const std::unique_ptr<ProcessGroup> alone = ProcessGroup::Alone();
  SelfTeacher self(MakeSelfTeacherOptions(config), student, alone.get());
  TAOPD_ASSIGN_OR_RETURN(const auto client, BadUsage(MakeTeacherClient(config, &self)));
  TAOPD_RETURN_IF_ERROR(BadUsage(CheckSourcesAreTaught(config, problems.records, "data.val")));
  TAOPD_ASSIGN_OR_RETURN(const TeacherInfo info, ConnectTeacher(config, client.get()));
  TAOPD_RETURN_IF_ERROR(BadUsage(CheckTeacherFits(config, *client, info, *student)));
  TAOPD_ASSIGN_OR_RETURN(
      const EvalResult result,
      FromMeasure(MeasureStudent(config, problems.records,
                                 {.decoder = student->decoder.get(), .teacher = client.get()})));
  return BadUsage(ReportEvaluation(config, request, model_dir, problems, result));
}

// Measures the accuracy of `student`, with an engine for the longest problem.
absl::Status EvaluateAnswers(const TrainConfig& config, const EvalRequest& request,
                             const std::string& model_dir, const PromptDataset& problems,
                             const Student& student) {
  int64_t longest_prompt = 1;
  for (const PromptRecord& problem : problems.records)
    longest_prompt = std::max(longest_prompt, static_cast<int64_t>(problem.prompt_ids.size()));
  // No rollouts use the engine, so the evaluation has their KV cache.
  EngineOptions options = MakeRolloutEngineOptions(config, student.decoder->config().vocab_size);
  options.max_model_len = longest_prompt + config.eval.max_response_length;
  options.max_num_seqs =
      MaxEvaluationSequences(config, static_cast<int64_t>(problems.records.size()));
  TAOPD_ASSIGN_OR_RETURN(const auto engine,
                         BadUsage(Annotate(MakeTorchEngine(student.decoder, options), "eval")));
  LocalRolloutEngine rollout_engine(engine.get());
  LocalSource source(&rollout_engine, student.tokenizer.get());
  return GradeResponses(config, request, model_dir, problems, student.tokenizer.get(), &source);
}

// Lowers data->max_prompt_length to the positions that a model has besides a response. Returns the
// reason for messages, or an empty text if the length stays.
absl::StatusOr<std::string> LimitPromptLength(const EvalConfig& eval, const ModelConfig& model,
                                              DataConfig* data) {
  const int64_t room = model.max_position_embeddings - eval.max_response_length;
  if (room < 1) {
    return InvalidArgument("eval.max_response_length ", eval.max_response_length,
                           " leaves no room for a prompt in the model's max_position_embeddings ",
                           model.max_position_embeddings);
  }
  if (room >= data->max_prompt_length) return std::string();
  data->max_prompt_length = room;
  return Concat(" (max_prompt_length: the model's max_position_embeddings ",
                model.max_position_embeddings, " less eval.max_response_length ",
                eval.max_response_length, ")");
}

absl::Status EvaluateModel(const TrainConfig& config, const EvalRequest& request) {
  SetNumThreads(config.trainer.num_threads);
  const std::string model_dir =
      request.model_dir.empty() ? config.student.model : request.model_dir;
  const KernelUse kernels = {.kernels = config.trainer.kernels,
                             .device = config.trainer.device,
                             .dtype = config.student.dtype};
  TAOPD_RETURN_IF_ERROR(ChooseKernels(kernels, [&] { return LoadModelConfig(model_dir); }));
  TAOPD_ASSIGN_OR_RETURN(
      Student student,
      BadModel(LoadStudent(model_dir, config.student.dtype, config.trainer.device, nullptr,
                           request.model_dir.empty() ? config.student.tokenizer : "")));
  TAOPD_ASSIGN_OR_RETURN(const PromptModel prompt_model,
                         BadData(PromptModelOf(config.data, student)));
  DataConfig data = config.data;
  std::string limit;  // where data.max_prompt_length comes from
  if (config.eval.measure == EvalMeasure::kAccuracy) {
    TAOPD_ASSIGN_OR_RETURN(
        limit, BadUsage(LimitPromptLength(config.eval, student.decoder->config(), &data)));
  }
  TAOPD_ASSIGN_OR_RETURN(
      const PromptDataset problems,
      BadData(Annotate(LoadEvalPrompts(data, config.eval, prompt_model), "data.val" + limit)));
  if (problems.records.empty()) {
    return BadUsage(
        InvalidArgument("nothing to evaluate: data.val is empty or eval.measure is none"));
  }
  LogDataset("data.val", problems);
  return config.eval.measure == EvalMeasure::kKl
             ? EvaluateKlToTeacher(config, request, model_dir, problems, &student)
             : EvaluateAnswers(config, request, model_dir, problems, student);
}

struct EvalFlags {
  ConfigFlags config;
  std::vector<std::string> data;
  EvalRequest request;
};

// Without a configuration file, this is the paper's evaluation, with the model's limits of length.
absl::Status ReadEvalConfig(const EvalFlags& flags, TrainConfig* config) {
  if (flags.config.path.empty()) {
    if (flags.request.model_dir.empty() && flags.request.server.url.empty()) {
      return InvalidArgument("eval needs --model, --endpoint or --config");
    }
    config->student.model =
        flags.request.server.url.empty() ? flags.request.model_dir : flags.request.server.url;
    config->data.max_prompt_length = INT32_MAX;
  }
  TAOPD_RETURN_IF_ERROR(flags.config.Read(config));
  if (!flags.data.empty()) config->data.val = flags.data;
  TAOPD_RETURN_IF_ERROR(CheckTrainConfig(*config));
  return CheckPromptSettings(config->data, config->eval);
}

// Says what is left of an evaluation that a signal ends.
std::string KeptText(const TrainConfig& config, const EvalRequest& request) {
  if (config.eval.measure != EvalMeasure::kAccuracy)
    return "an evaluation of eval.measure kl keeps nothing";
  return "the responses so far are kept in " + request.ResponsesPath() +
         ", and the same command continues from there";
}

}  // namespace

Subcommand AddEval(CLI::App& app) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* command =
      app.add_subcommand("eval", "Evaluate a model, here or on a server, on held-out problems");
  flags->config.AddTo(command, /*required=*/false);
  EvalRequest& request = flags->request;
  command->add_option("--model", request.model_dir,
                      "Model directory; with --endpoint the server's model. Default: "
                      "student.model, or the server's first");
  command->add_option("--data", flags->data,
                      "JSON Lines or Parquet files of problems. Default: data.val");
  command->add_option("--endpoint", request.server.url,
                      "OpenAI-compatible server that answers instead of a model in this process");
  command->add_option("--api-key-env", request.server.api_key_env,
                      "Environment variable that holds the API key. Default: OPENAI_API_KEY");
  command->option_defaults()->always_capture_default();
  command
      ->add_option("--concurrency", request.server.concurrency,
                   "Maximum number of requests in flight at the server")
      ->check(NumberIn(1, 1024));
  command
      ->add_option("--timeout", request.server.timeout_s,
                   "Time limit in seconds for one attempt at one response")
      ->check(NumberIn(0.001, 86400));
  command
      ->add_option("--max-retries", request.server.max_retries,
                   "Maximum number of further attempts at a response")
      ->check(NonNegativeNumber());
  command->add_option("--output", request.output_path,
                      "File to which the results are written as JSON");
  command->add_option("--responses", request.responses_path,
                      "File of all responses as JSON Lines, from which an interrupted evaluation "
                      "continues. Default: next to the results");
  command->add_flag("--overwrite", request.overwrite,
                    "Replace the responses of another evaluation");
  return {command,
          [flags]() -> absl::Status {
            TAOPD_RETURN_IF_ERROR(CheckIsAlone("eval"));
            TrainConfig config;
            TAOPD_RETURN_IF_ERROR(BadUsage(ReadEvalConfig(*flags, &config)));
            EndOnSignals(KeptText(config, flags->request));
            return flags->request.server.url.empty() ? EvaluateModel(config, flags->request)
                                                     : EvaluateEndpoint(config, flags->request);
          },
          /*takes_signals=*/true};
}

}  // namespace taopd
