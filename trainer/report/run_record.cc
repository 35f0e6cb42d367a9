#include "trainer/report/run_record.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "common/config/yaml.h"
#include "common/io/file.h"
#include "common/io/jsonl.h"

namespace taopd::report {
namespace {

// The default of run.name, which does not identify a run.
constexpr char kUnnamed[] = "run";

using LineReader = std::function<absl::Status(const nlohmann::json& value)>;

// Reads JSON Lines. An incomplete last line without a line break, as a killed process leaves it,
// becomes a note.
absl::Status ReadLines(const std::string& path, const LineReader& read, RunRecord* run) {
  TAOPD_ASSIGN_OR_RETURN(const std::string content, ReadFileToString(path));
  int64_t line_number = 0;
  for (size_t start = 0; start < content.size();) {
    const size_t newline = content.find('\n', start);
    const bool ended = newline != std::string::npos;
    const std::string line = content.substr(start, ended ? newline - start : std::string::npos);
    start = ended ? newline + 1 : content.size();
    const std::string where = Concat(path, ":", ++line_number);
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const absl::StatusOr<nlohmann::json> value = ParseJson(line, where);
    if (!value.ok() && !ended) {
      run->notes.push_back(Concat(std::filesystem::path(path).filename().string(), " line ",
                                  line_number,
                                  " is only half written (the run was stopped while it wrote it) "
                                  "and is left out."));
      break;
    }
    if (!value.ok()) return DataLoss(value.status().message());
    if (!value->is_object()) return DataLoss(where, ": not a JSON object");
    TAOPD_RETURN_IF_ERROR(Annotate(read(*value), where));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ReadStep(const nlohmann::json& line) {
  const auto step = line.find("step");
  if (step == line.end()) return DataLoss("\"step\" is missing");
  if (!step->is_number_integer()) return DataLoss("\"step\" is not an integer");
  const bool fits = !step->is_number_unsigned() ||
                    step->get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
  if (!fits || step->get<int64_t>() < 0) {
    return DataLoss("\"step\" is ", step->dump(), ", which is not a step");
  }
  return step->get<int64_t>();
}

absl::Status ReadMetrics(const std::string& path, RunRecord* run) {
  std::map<std::string, std::map<int64_t, double>> values;
  std::set<int64_t> repeated_steps;
  const auto read = [&](const nlohmann::json& line) -> absl::Status {
    TAOPD_ASSIGN_OR_RETURN(const int64_t step, ReadStep(line));
    for (const auto& [name, value] : line.items()) {
      if (name == "step" || name == "non_finite") continue;
      if (!value.is_number() && !(value.is_null() && name != "time")) {
        return DataLoss("\"", name, "\" is not a number");
      }
      const double number =
          value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
      if (name == "time") {
        if (!run->first_time_s) run->first_time_s = number;
        run->last_time_s = number;
        continue;
      }
      const auto [place, is_new] = values[name].insert_or_assign(step, number);
      if (!is_new) repeated_steps.insert(step);
    }
    return absl::OkStatus();
  };
  TAOPD_RETURN_IF_ERROR(ReadLines(path, read, run));
  for (const auto& [name, by_step] : values) {
    Series& series = run->series[name];
    for (const auto& [step, value] : by_step) series.push_back({step, value});
  }
  if (!repeated_steps.empty()) {
    run->notes.push_back(Concat(repeated_steps.size(), " step(s) between ", *repeated_steps.begin(),
                                " and ", *repeated_steps.rbegin(),
                                " are recorded more than once; the last values are shown."));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadText(const nlohmann::json& line, const char* key) {
  const auto value = line.find(key);
  if (value == line.end()) return DataLoss("\"", key, "\" is missing");
  if (!value->is_string()) return DataLoss("\"", key, "\" is not a text");
  return value->get<std::string>();
}

absl::StatusOr<Sample> ReadSample(const nlohmann::json& line) {
  Sample sample;
  TAOPD_ASSIGN_OR_RETURN(sample.step, ReadStep(line));
  TAOPD_ASSIGN_OR_RETURN(sample.prompt, ReadText(line, "prompt"));
  TAOPD_ASSIGN_OR_RETURN(sample.response, ReadText(line, "response"));
  TAOPD_ASSIGN_OR_RETURN(const std::string when, ReadText(line, "when"));
  if (when == "before") {
    sample.when = Sample::When::kBefore;
  } else if (when == "after") {
    sample.when = Sample::When::kAfter;
  } else if (when != "eval") {
    return DataLoss("\"when\" is \"", when, "\", not before, after or eval");
  }
  if (line.contains("answer") && !line["answer"].is_null()) {
    TAOPD_ASSIGN_OR_RETURN(sample.answer, ReadText(line, "answer"));
  }
  if (line.contains("correct") && !line["correct"].is_null()) {
    if (!line["correct"].is_boolean()) return DataLoss("\"correct\" is not true or false");
    sample.correct = line["correct"].get<bool>();
  }
  return sample;
}

absl::Status ReadSummary(const std::string& path, RunRecord* run) {
  const absl::StatusOr<nlohmann::json> summary = ReadJsonFile(path);
  if (!summary.ok()) return DataLoss(summary.status().message());
  if (!summary->is_object()) return DataLoss(path, ": not a JSON object");
  run->has_summary = true;
  for (const auto& [key, value] : summary->items()) {
    if (value.is_number()) run->summary[key] = value.get<double>();
  }
  for (const char* key :
       {"teacher_accuracy", "student_accuracy_before", "student_accuracy_after",
        "student_kl_to_teacher_before", "student_kl_to_teacher_after", "steps", "seconds"}) {
    for (const char* end : {"", "_low", "_high", "_n"}) {
      const auto value = summary->find(Concat(key, end));
      if (value != summary->end() && !value->is_number() && !value->is_null()) {
        return DataLoss(path, ": \"", key, end, "\" is not a number");
      }
    }
  }
  return absl::OkStatus();
}

bool HasValues(const Series& series) {
  return std::ranges::any_of(series, [](const Point& point) { return std::isfinite(point.value); });
}

using Path = std::vector<std::string>;

Path PathOf(const std::string& dir) {
  std::error_code ignored;
  Path parts;
  for (const auto& part : std::filesystem::absolute(dir, ignored).lexically_normal()) {
    if (!part.empty()) parts.push_back(part.string());
  }
  return parts;
}

// Removes the parts with which all paths begin, but keeps the last part of each.
void RemoveCommonPrefix(std::vector<Path>* paths) {
  const auto cut = [&](const Path& path) {
    return path.size() > 1 && path.front() == paths->front().front();
  };
  while (std::ranges::all_of(*paths, cut)) {
    for (Path& path : *paths) path.erase(path.begin());
  }
}

}  // namespace

const Series* RunRecord::Find(const std::string& metric) const {
  const auto found = series.find(metric);
  return found != series.end() && HasValues(found->second) ? &found->second : nullptr;
}

bool RunRecord::RecordedAnything() const {
  return std::ranges::any_of(series,
                             [](const auto& recorded) { return HasValues(recorded.second); });
}

int64_t RunRecord::LastStep() const {
  int64_t last = 0;
  for (const auto& [metric, points] : series) {
    if (!points.empty()) last = std::max(last, points.back().step);
  }
  return last;
}

std::optional<double> RunRecord::Summary(const std::string& key) const {
  const auto found = summary.find(key);
  return found == summary.end() ? std::nullopt : std::optional<double>(found->second);
}

std::string RunRecord::SettingValue(const std::string& path) const {
  const auto found =
      std::ranges::find_if(settings, [&](const auto& setting) { return setting.first == path; });
  return found == settings.end() ? "" : found->second;
}

absl::StatusOr<RunRecord> ReadRun(const std::string& dir) {
  RunRecord run;
  run.dir = dir;
  TAOPD_RETURN_IF_ERROR(ReadMetrics(dir + "/metrics.jsonl", &run));
  if (!run.RecordedAnything()) run.notes.emplace_back("metrics.jsonl has no values to show yet.");
  if (const std::string path = dir + "/summary.json"; FileExists(path)) {
    TAOPD_RETURN_IF_ERROR(ReadSummary(path, &run));
  }
  run.has_ended = !FileExists(dir + "/continued") &&
                  (run.has_summary || FileExists(dir + "/model/config.json") ||
                   FileExists(dir + "/model/adapter_config.json"));
  if (const std::string path = dir + "/config.yaml"; FileExists(path)) {
    TAOPD_ASSIGN_OR_RETURN(run.config_yaml, ReadFileToString(path));
    const auto settings = ReadYamlValues(run.config_yaml, "config.yaml");
    if (settings.ok()) {
      run.settings = *settings;
    } else {
      run.notes.emplace_back(settings.status().message());
    }
  }
  if (const std::string path = dir + "/samples.jsonl"; FileExists(path)) {
    const auto read = [&run](const nlohmann::json& line) -> absl::Status {
      TAOPD_ASSIGN_OR_RETURN(run.samples.emplace_back(), ReadSample(line));
      return absl::OkStatus();
    };
    TAOPD_RETURN_IF_ERROR(ReadLines(path, read, &run));
  }
  return run;
}

void NameRuns(std::vector<RunRecord>* runs) {
  std::map<std::string, int> num_named;
  std::vector<Path> paths;
  for (const RunRecord& run : *runs) {
    ++num_named[run.SettingValue("run.name")];
    paths.push_back(PathOf(run.dir));
  }
  if (runs->empty()) return;
  RemoveCommonPrefix(&paths);
  // Removes the parts with which all paths end.
  for (Path& path : paths) std::ranges::reverse(path);
  RemoveCommonPrefix(&paths);
  for (Path& path : paths) std::ranges::reverse(path);
  std::map<std::string, int> num_seen;
  for (size_t i = 0; i < runs->size(); ++i) {
    RunRecord& run = (*runs)[i];
    run.name = run.SettingValue("run.name");
    if (run.name.empty() || run.name == kUnnamed || num_named[run.name] > 1) {
      run.name.clear();
      for (const std::string& part : paths[i]) run.name += (run.name.empty() ? "" : "/") + part;
    }
    if (const int nth = ++num_seen[run.name]; nth > 1) run.name += Concat(" (", nth, ")");
  }
}

}  // namespace taopd::report
