#include "trainer/run/records/recorded_metrics.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>

#include "common/base/log.h"
#include "common/io/file.h"

namespace taopd {
namespace {

using nlohmann::json;

struct Line {
  json row;
  std::string_view text;       // with the line break
  int64_t begin = 0, end = 0;  // its position in the file
};

// Calls `read` for each complete line, up to the first that is not a JSON object.
void ForLines(const std::string& text, const std::function<void(const Line& line)>& read) {
  size_t begin = 0;
  for (size_t end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    Line line;
    line.text = std::string_view(text).substr(begin, end + 1 - begin);
    line.begin = static_cast<int64_t>(begin);
    line.end = static_cast<int64_t>(end) + 1;
    line.row = json::parse(line.text, nullptr, /*allow_exceptions=*/false);
    if (!line.row.is_object()) return;
    read(line);
  }
}

bool IsEvaluation(const json& row) {
  for (const auto& [name, value] : row.items()) {
    if (name.substr(0, name.find('/')) == "eval") return true;
  }
  return false;
}

int64_t StepOf(const json& row) {
  const auto step = row.find("step");
  return step != row.end() && step->is_number_integer() ? step->get<int64_t>() : -1;
}

absl::StatusOr<std::string> ReadOrEmpty(const std::string& path) {
  if (!FileExists(path)) return std::string();
  return ReadFileToString(path);
}

// Returns the size to which to cut a file that should have `size_bytes` bytes after `step` steps.
absl::StatusOr<int64_t> CutOf(const std::string& path, int64_t size_bytes, int64_t step) {
  std::error_code error;
  const uint64_t present_bytes = std::filesystem::file_size(path, error);
  if (!error && present_bytes >= static_cast<uint64_t>(size_bytes)) return size_bytes;
  TAOPD_ASSIGN_OR_RETURN(const std::string text, ReadOrEmpty(path));
  if (text.empty() && size_bytes == 0) return 0;
  int64_t end_of_lines = 0, last_step = -1;
  ForLines(text, [&](const Line& line) {
    end_of_lines = line.end;
    last_step = std::max(last_step, StepOf(line.row));
  });
  LogWarning("a record is shorter than the checkpoint says; the run continues with the rest",
             {{"path", path},
              {"missing_bytes", size_bytes - end_of_lines},
              {"from_step", std::min(last_step + 1, step)},
              {"to_step", step}});
  return end_of_lines;
}

// Keeps a line after the size in the checkpoint: one that follows the kept part of the file extends
// it, and the others are collected.
void Keep(const Line& line, int64_t* size_bytes, std::string* others) {
  if (line.begin <= *size_bytes) {
    *size_bytes = line.end;
  } else {
    *others += line.text;
  }
}

}  // namespace

absl::StatusOr<RecordedMetrics> ReadRecordedMetrics(const std::string& run_dir, int64_t step,
                                                    int64_t metrics_bytes, int64_t samples_bytes,
                                                    const std::string& metric) {
  const std::string metrics_path = run_dir + "/metrics.jsonl";
  const std::string samples_path = run_dir + "/samples.jsonl";
  TAOPD_ASSIGN_OR_RETURN(const std::string metrics, ReadOrEmpty(metrics_path));
  RecordedMetrics record;
  TAOPD_ASSIGN_OR_RETURN(record.metrics_bytes, CutOf(metrics_path, metrics_bytes, step));
  TAOPD_ASSIGN_OR_RETURN(record.samples_bytes, CutOf(samples_path, samples_bytes, step));
  metrics_bytes = record.metrics_bytes;
  samples_bytes = record.samples_bytes;
  std::set<int64_t> later_steps;  // of evaluations after these sizes
  ForLines(metrics, [&](const Line& line) {
    const bool is_evaluation = IsEvaluation(line.row);
    const int64_t row_step = StepOf(line.row);
    if (line.end > metrics_bytes) {
      if (row_step < 0 || row_step > step || !is_evaluation) return;
      Keep(line, &record.metrics_bytes, &record.later_metrics);
      later_steps.insert(row_step);
    }
    if (is_evaluation) record.evaluated.insert(row_step);
    const auto value = metric.empty() ? line.row.end() : line.row.find(metric);
    if (value != line.row.end() && value->is_number())
      record.values.emplace_back(row_step, value->get<double>());
  });
  record.has_evaluation = record.evaluated.contains(step);
  if (later_steps.empty()) return record;
  TAOPD_ASSIGN_OR_RETURN(const std::string samples, ReadOrEmpty(samples_path));
  ForLines(samples, [&](const Line& line) {
    if (line.end > samples_bytes && later_steps.contains(StepOf(line.row)))
      Keep(line, &record.samples_bytes, &record.later_samples);
  });
  return record;
}

absl::Status KeepLaterRecords(const std::string& run_dir, RecordedMetrics* record) {
  const auto move_up = [&](const std::string& name, std::string* later,
                           int64_t* size_bytes) -> absl::Status {
    if (later->empty()) return absl::OkStatus();
    const std::string path = run_dir + "/" + name;
    TAOPD_ASSIGN_OR_RETURN(std::string text, ReadFileToString(path));
    text.resize(static_cast<size_t>(*size_bytes));
    TAOPD_RETURN_IF_ERROR(WriteFileAtomically(path, text + *later));
    *size_bytes += static_cast<int64_t>(later->size());
    later->clear();
    return absl::OkStatus();
  };
  TAOPD_RETURN_IF_ERROR(move_up("samples.jsonl", &record->later_samples, &record->samples_bytes));
  return move_up("metrics.jsonl", &record->later_metrics, &record->metrics_bytes);
}

}  // namespace taopd
