#include "trainer/commands/eval/evaluation_files.h"

#include <chrono>
#include <cstdio>
#include <filesystem>

#include "common/base/log.h"
#include "common/io/file.h"
#include "common/model/config/lora_config.h"
#include "trainer/eval/measure_student.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

absl::Status AddWeightFiles(const std::string& dir, Json* evaluation) {
  TAOPD_ASSIGN_OR_RETURN(const auto names, ListDirectory(dir));
  for (const std::string& name : names) {
    if (name.find(".safetensors") == std::string::npos) continue;
    std::error_code error;
    const std::string path = dir + "/" + name;
    const auto bytes = std::filesystem::file_size(path, error);
    if (error) return Internal("cannot read ", path, ": ", error.message());
    const auto time =
        std::chrono::file_clock::to_sys(std::filesystem::last_write_time(path, error));
    if (error) return Internal("cannot read ", path, ": ", error.message());
    (*evaluation)["weights"].push_back(
        {{"file", name}, {"bytes", bytes}, {"unix_ns", time.time_since_epoch().count()}});
  }
  return absl::OkStatus();
}

// The parts of the problems that the model does not see.
struct PromptOmissions {
  int64_t num_problems = 0;
  int64_t num_truncated = 0;
  int64_t num_truncated_tokens = 0;
  int64_t num_with_unknown = 0;  // problems with bytes for which the tokenizer has no token
  int64_t num_unknown_bytes = 0;
  int64_t num_overlong = 0;  // problems that were dropped
};

PromptOmissions OmissionsOf(const PromptDataset& problems) {
  PromptOmissions omissions;
  omissions.num_overlong = problems.num_overlong();
  for (const PromptRecord& problem : problems.records) {
    ++omissions.num_problems;
    omissions.num_truncated += problem.num_truncated_tokens > 0 ? 1 : 0;
    omissions.num_truncated_tokens += problem.num_truncated_tokens;
    omissions.num_with_unknown += problem.num_unknown_bytes > 0 ? 1 : 0;
    omissions.num_unknown_bytes += problem.num_unknown_bytes;
  }
  return omissions;
}

// Returns lines to print below the table, or an empty text if nothing was omitted.
std::string OmissionsText(const PromptOmissions& omissions, const std::string& truncation) {
  std::string text;
  if (omissions.num_overlong > 0) {
    text += Concat("  ", omissions.num_overlong,
                   " over-long problems are left out (data.filter_overlong_prompts)\n");
  }
  if (omissions.num_truncated > 0) {
    text += Concat("  ", omissions.num_truncated, " of ", omissions.num_problems,
                   " prompts are cut, by ", omissions.num_truncated_tokens,
                   " tokens in all (data.truncation ", truncation, ")\n");
  }
  if (omissions.num_unknown_bytes > 0) {
    text += Concat("  ", omissions.num_with_unknown, " of ", omissions.num_problems,
                   " prompts lack characters that the tokenizer has no token for, ",
                   omissions.num_unknown_bytes, " bytes in all\n");
  }
  return text;
}

absl::Status WriteResults(const TrainConfig& config, const EvalRequest& request,
                          const std::string& model, const PromptOmissions& omissions,
                          const EvalResult& result) {
  Json values = {
      {"model", model}, {"data", config.data.val}, {"measure", NameOf(config.eval.measure)}};
  if (!request.server.url.empty()) values["endpoint"] = request.server.url;
  if (config.eval.measure == EvalMeasure::kAccuracy) {
    values.update(AccuracyReportJson(result.accuracy));
    values["temperature"] = config.eval.temperature;
    values["top_p"] = config.eval.top_p;
    values["max_response_length"] = config.eval.max_response_length;
    values["grader"] = config.eval.grader;
    values["seed"] = config.run.seed;
    values["prompts"] = {{"num_overlong_dropped", omissions.num_overlong},
                         {"num_truncated", omissions.num_truncated},
                         {"num_truncated_tokens", omissions.num_truncated_tokens},
                         {"num_with_unknown_bytes", omissions.num_with_unknown},
                         {"num_unknown_bytes", omissions.num_unknown_bytes}};
    values["responses"] = request.ResponsesPath();
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

}  // namespace

absl::StatusOr<Json> DescribeEvaluation(const TrainConfig& config, const EvalRequest& request,
                                        const std::string& model) {
  TAOPD_ASSIGN_OR_RETURN(Json evaluation, DescribeQuestions(config));
  evaluation["model"] = model;
  if (!request.server.url.empty()) {
    evaluation["endpoint"] = request.server.url;
  } else {
    TAOPD_RETURN_IF_ERROR(AddWeightFiles(model, &evaluation));
    // An adapter's weights are those of its base, too.
    TAOPD_ASSIGN_OR_RETURN(const std::string base, BaseModelDir(model));
    if (base != model) TAOPD_RETURN_IF_ERROR(AddWeightFiles(base, &evaluation));
  }
  return evaluation;
}

std::string EvalRequest::ResponsesPath() const {
  if (!responses_path.empty()) return responses_path;
  std::filesystem::path path(output_path);
  return path.replace_extension("responses.jsonl").string();
}

absl::Status ReportEvaluation(const TrainConfig& config, const EvalRequest& request,
                              const std::string& model, const PromptDataset& problems,
                              const EvalResult& result) {
  const PromptOmissions omissions = OmissionsOf(problems);
  std::printf("%s\n", model.c_str());
  if (config.eval.measure == EvalMeasure::kAccuracy) {
    std::printf("%s%s", AccuracyTable(result.accuracy).c_str(),
                OmissionsText(omissions, NameOf(config.data.truncation)).c_str());
  } else {
    for (const auto& [name, value] : result.metrics)
      std::printf("  %-28s %.6g\n", name.c_str(), value);
  }
  std::fflush(stdout);
  TAOPD_RETURN_IF_ERROR(WriteResults(config, request, model, omissions, result));
  LogInfo("evaluation written", {{"results", request.output_path}});
  return absl::OkStatus();
}

}  // namespace taopd
