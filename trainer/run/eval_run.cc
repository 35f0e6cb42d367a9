// The eval subcommand: a model in this process or on a server, on data.val.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "common/base/log.h"
#include "common/engine/torch_engine.h"
#include "common/io/file.h"
#include "common/io/jsonl.h"
#include "common/io/sha256.h"
#include "trainer/eval/local_source.h"
#include "trainer/eval/openai_source.h"
#include "trainer/run/commands.h"
#include "trainer/run/run_setup.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kApiKeyVariable[] = "OPENAI_API_KEY";

// Settings that decide what is asked and how it is judged, by name, from the one list of settings.
Json SettingsOfEvaluation(TrainConfig config) {
  Json values = Json::object();
  const SettingTable table = DescribeSettings(config);
  for (const Setting& setting : table.settings()) {
    const bool counts =
        setting.path == "run.seed" || setting.path == "student.dtype" ||
        (setting.path.rfind("eval.", 0) == 0 && setting.path != "eval.num_samples") ||
        (setting.path.rfind("data.", 0) == 0 && setting.path.rfind("data.train", 0) != 0 &&
         setting.path != "data.val" && setting.path != "data.max_response_length" &&
         setting.path != "data.shuffle" && setting.path != "data.drop_duplicates");
    if (counts) values[setting.path] = SettingText(setting.value);
  }
  return values;
}

// What a journal must agree with: the settings, the bytes of the data and the weights (by size and
// time: hashing a big model would take longer than many an evaluation).
absl::StatusOr<Json> DescribeEvaluation(const TrainConfig& config, const EvalRequest& request,
                                        const std::string& model) {
  Json evaluation = SettingsOfEvaluation(config);
  evaluation["model"] = model;
  if (!request.endpoint.empty()) {
    evaluation["endpoint"] = request.endpoint;
  } else {
    TAOPD_ASSIGN_OR_RETURN(const auto names, ListDirectory(model));
    for (const std::string& name : names) {
      if (name.find(".safetensors") == std::string::npos) continue;
      std::error_code error;
      const std::string path = model + "/" + name;
      const auto time = std::filesystem::last_write_time(path, error).time_since_epoch().count();
      evaluation["weights"].push_back(
          {{"file", name}, {"bytes", std::filesystem::file_size(path, error)}, {"time", time}});
    }
  }
  for (const std::string& path : config.data.val) {
    TAOPD_ASSIGN_OR_RETURN(const std::string hash, Sha256OfFile(path));
    evaluation["data"].push_back({{"file", path}, {"sha256", hash}});
  }
  return evaluation;
}

std::string ResponsesPath(const EvalRequest& request) {
  if (!request.responses_path.empty()) return request.responses_path;
  std::filesystem::path path(request.output_path);
  return path.replace_extension("responses.jsonl").string();
}

// What the problems lost before the model saw them.
struct PromptLosses {
  int64_t num_problems = 0;
  int64_t num_truncated = 0;
  int64_t num_truncated_tokens = 0;
  int64_t num_with_unknown = 0;  // problems with bytes that the tokenizer has no token for
  int64_t num_unknown_bytes = 0;
  int64_t num_overlong = 0;  // problems that were dropped
};

PromptLosses LossesOf(const PromptDataset& problems) {
  PromptLosses losses;
  losses.num_overlong = problems.num_overlong();
  for (const PromptRecord& problem : problems.records) {
    ++losses.num_problems;
    losses.num_truncated += problem.num_truncated_tokens > 0 ? 1 : 0;
    losses.num_truncated_tokens += problem.num_truncated_tokens;
    losses.num_with_unknown += problem.num_unknown_bytes > 0 ? 1 : 0;
    losses.num_unknown_bytes += problem.num_unknown_bytes;
  }
  return losses;
}

// Under the table; nothing where nothing was lost.
std::string LossesText(const PromptLosses& losses, const std::string& truncation) {
  std::string text;
  if (losses.num_overlong > 0) {
    text += Concat("  ", losses.num_overlong,
                   " over-long problems are left out (data.filter_overlong_prompts)\n");
  }
  if (losses.num_truncated > 0) {
    text +=
        Concat("  ", losses.num_truncated, " of ", losses.num_problems, " prompts are cut, by ",
               losses.num_truncated_tokens, " tokens in all (data.truncation ", truncation, ")\n");
  }
  if (losses.num_unknown_bytes > 0) {
    text += Concat("  ", losses.num_with_unknown, " of ", losses.num_problems,
                   " prompts lack characters that the tokenizer has no token for, ",
                   losses.num_unknown_bytes, " bytes in all\n");
  }
  return text;
}

absl::Status WriteResults(const TrainConfig& config, const EvalRequest& request,
                          const std::string& model, const PromptLosses& losses,
                          const EvalResult& result) {
  Json values = {{"model", model}, {"data", config.data.val}, {"measure", config.eval.measure}};
  if (!request.endpoint.empty()) values["endpoint"] = request.endpoint;
  if (config.eval.measure == "accuracy") {
    values.update(AccuracyReportJson(result.accuracy));
    values["temperature"] = config.eval.temperature;
    values["top_p"] = config.eval.top_p;
    values["max_response_length"] = config.eval.max_response_length;
    values["grader"] = config.eval.grader;
    values["seed"] = config.run.seed;
    values["prompts"] = {{"num_overlong_dropped", losses.num_overlong},
                         {"num_truncated", losses.num_truncated},
                         {"num_truncated_tokens", losses.num_truncated_tokens},
                         {"num_with_unknown_bytes", losses.num_with_unknown},
                         {"num_unknown_bytes", losses.num_unknown_bytes}};
    values["responses"] = ResponsesPath(request);
  } else {
    for (const auto& [name, value] : result.metrics)
      values[name.substr(name.find('/') + 1)] = value;
  }
  if (const auto parent = std::filesystem::path(request.output_path).parent_path();
      !parent.empty()) {
    TAOPD_RETURN_IF_ERROR(MakeDirectories(parent.string()));
  }
  return WriteFileAtomically(request.output_path, values.dump(2) + "\n");
}

// A log line now and then, not one a response.
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
  int64_t first_ = -1;  // responses that were there before
};

std::optional<RunFailure> Failed(const absl::Status& status) {
  const bool away = absl::IsUnavailable(status) || absl::IsPermissionDenied(status);
  return RunFailure{away ? ExitCode::kTeacherUnavailable : ExitCode::kBadData, status};
}

std::optional<RunFailure> Report(const TrainConfig& config, const EvalRequest& request,
                                 const std::string& model, const PromptDataset& problems,
                                 const EvalResult& result) {
  const PromptLosses losses = LossesOf(problems);
  std::printf("%s\n", model.c_str());
  if (config.eval.measure == "accuracy") {
    std::printf("%s%s", AccuracyTable(result.accuracy).c_str(),
                LossesText(losses, config.data.truncation).c_str());
  } else {
    for (const auto& [name, value] : result.metrics)
      std::printf("  %-28s %.6g\n", name.c_str(), value);
  }
  std::fflush(stdout);
  if (absl::Status written = WriteResults(config, request, model, losses, result); !written.ok())
    return BadConfig(written);
  LogInfo("evaluation written", {{"results", request.output_path}});
  return std::nullopt;
}

// Grades what `source` gives, with the journal.
std::optional<RunFailure> Measure(const TrainConfig& config, const EvalRequest& request,
                                  const std::string& model, const PromptDataset& problems,
                                  ResponseSource* source) {
  auto evaluation = DescribeEvaluation(config, request, model);
  if (!evaluation.ok()) return BadData(evaluation.status());
  auto journal = EvalJournal::Open(ResponsesPath(request), *evaluation, request.overwrite);
  if (!journal.ok()) return BadConfig(journal.status());
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
  return Report(config, request, model, problems, *result);
}

std::optional<RunFailure> EvaluateEndpoint(const TrainConfig& config, const EvalRequest& request) {
  if (config.eval.measure != "accuracy")
    return BadConfig(InvalidArgument("--endpoint needs eval.measure accuracy"));
  if (config.data.truncation != "error" || config.data.filter_overlong_prompts) {
    LogWarning(
        "prompts go to the server whole: data.truncation and data.filter_overlong_prompts are for "
        "a model in this process");
  }
  PromptModel model;
  model.renders_itself = true;
  auto problems = LoadEvalPrompts(config.data, config.eval, model);
  if (!problems.ok()) return BadData(Annotate(problems.status(), "data.val"));
  if (problems->records.empty())
    return BadConfig(InvalidArgument("nothing to evaluate: data.val is empty"));
  LogDataset("data.val", *problems);
  OpenAiOptions options;
  options.url = request.endpoint;
  options.model = request.model_dir;
  options.api_key_env = request.api_key_env.empty() ? kApiKeyVariable : request.api_key_env;
  if (const char* key = std::getenv(options.api_key_env.c_str())) options.api_key = key;
  if (!request.api_key_env.empty() && options.api_key.empty()) {
    return BadConfig(InvalidArgument("--api-key-env: the environment variable ",
                                     request.api_key_env, " is empty or not set"));
  }
  options.concurrency = request.concurrency;
  options.timeout_s = request.timeout_s;
  options.max_retries = request.max_retries;
  options.chat_template_kwargs = *ParseChatTemplateKwargs(config.data.chat_template_kwargs);
  auto source = OpenAiSource::Connect(options);
  if (!source.ok()) {
    return absl::IsInvalidArgument(source.status()) ? BadConfig(source.status())
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

std::optional<RunFailure> EvaluateModel(TrainConfig config, const EvalRequest& request) {
  SetNumThreads(config.trainer.num_threads);
  const std::string model_dir =
      request.model_dir.empty() ? config.student.model : request.model_dir;
  auto student = LoadStudent(model_dir, config.student.dtype, config.trainer.device, nullptr,
                             request.model_dir.empty() ? config.student.tokenizer : "");
  if (!student.ok()) return BadData(student.status());
  auto prompt_model = PromptModelOf(config.data, *student);
  if (!prompt_model.ok()) return BadData(prompt_model.status());
  DataConfig data = config.data;
  std::string limit;  // where data.max_prompt_length comes from
  if (config.eval.measure == "accuracy") {
    const int64_t positions = student->decoder->config().max_position_embeddings;
    const int64_t room = positions - config.eval.max_response_length;
    if (room < 1) {
      return BadConfig(InvalidArgument(
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
  if (problems->records.empty())
    return BadConfig(
        InvalidArgument("nothing to evaluate: data.val is empty or eval.measure is none"));
  LogDataset("data.val", *problems);

  if (config.eval.measure == "kl") {
    auto client = MakeTeacherClient(config.teacher);
    if (!client.ok()) return BadConfig(Annotate(client.status(), "teacher.endpoints"));
    auto info = (*client)->Connect(absl::Seconds(config.teacher.connect_timeout_s));
    if (!info.ok())
      return RunFailure{ExitCode::kTeacherUnavailable, Annotate(info.status(), "teacher")};
    if (absl::Status fits = CheckTeacherFits(config, *info, *student); !fits.ok())
      return BadConfig(fits);
    auto result = RunEvaluation(config, problems->records, &*student, nullptr, client->get());
    if (!result.ok()) return Failed(result.status());
    return Report(config, request, model_dir, *problems, *result);
  }
  // The engine's length is this evaluation's.
  TrainConfig sized = config;
  sized.data.max_response_length = 1;
  sized.data.max_prompt_length = 1;
  for (const PromptRecord& problem : problems->records) {
    sized.data.max_prompt_length =
        std::max(sized.data.max_prompt_length, static_cast<int64_t>(problem.prompt_ids.size()));
  }
  auto engine = MakeRolloutEngine(sized, student->decoder);
  if (!engine.ok()) return BadConfig(Annotate(engine.status(), "eval"));
  LocalRolloutEngine rollout_engine(engine->get());
  LocalSource source(&rollout_engine, student->tokenizer.get());
  return Measure(config, request, model_dir, *problems, &source);
}

}  // namespace

std::optional<RunFailure> RunEval(TrainConfig config, const EvalRequest& request) {
  if (absl::Status checked = CheckPromptSettings(config.data, config.eval); !checked.ok())
    return BadConfig(checked);
  return CatchExceptions([&] {
    return request.endpoint.empty() ? EvaluateModel(std::move(config), request)
                                    : EvaluateEndpoint(config, request);
  });
}

}  // namespace taopd
