#include "trainer/run/recorded_metrics.h"

#include <functional>
#include <nlohmann/json.hpp>

#include "common/io/file.h"

namespace taopd {
namespace {

using nlohmann::json;

// Calls `line` for each complete line that is a JSON object, with the position behind it, until it
// returns false.
void ForLines(const std::string& text, const std::function<bool(const json&, int64_t)>& line) {
  size_t begin = 0;
  while (true) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) return;
    const json row = json::parse(text.begin() + static_cast<int64_t>(begin),
                                 text.begin() + static_cast<int64_t>(end), nullptr, false);
    if (!row.is_object() || !line(row, static_cast<int64_t>(end) + 1)) return;
    begin = end + 1;
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

}  // namespace

absl::StatusOr<RecordedMetrics> ReadRecordedMetrics(const std::string& run_dir, int64_t step,
                                                    int64_t metrics_bytes, int64_t samples_bytes,
                                                    const std::string& metric) {
  TAOPD_ASSIGN_OR_RETURN(const std::string metrics, ReadOrEmpty(run_dir + "/metrics.jsonl"));
  RecordedMetrics record;
  record.metrics_bytes = metrics_bytes;
  record.samples_bytes = samples_bytes;
  bool has_later_evaluation = false;  // behind what the checkpoint knows
  ForLines(metrics, [&](const json& row, int64_t end) {
    const bool is_evaluation = IsEvaluation(row);
    if (end > metrics_bytes) {
      if (StepOf(row) != step || !is_evaluation) return false;
      record.metrics_bytes = end;
      has_later_evaluation = true;
    }
    record.has_evaluation |= is_evaluation && StepOf(row) == step;
    const auto value = metric.empty() ? row.end() : row.find(metric);
    if (value != row.end() && value->is_number()) {
      record.values.emplace_back(StepOf(row), value->get<double>());
    }
    return true;
  });
  if (!has_later_evaluation) return record;
  TAOPD_ASSIGN_OR_RETURN(const std::string samples, ReadOrEmpty(run_dir + "/samples.jsonl"));
  ForLines(samples, [&](const json& row, int64_t end) {
    if (end <= samples_bytes) return true;
    if (StepOf(row) != step) return false;
    record.samples_bytes = end;
    return true;
  });
  return record;
}

}  // namespace taopd
