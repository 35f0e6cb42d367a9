// The files that a run left in its directory, read and checked.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace taopd::report {

struct Point {
  int64_t step = 0;
  // NaN if it was recorded as null: a gap in the curve.
  double value = 0;
};
// In ascending order of steps.
using Series = std::vector<Point>;

struct Sample {
  enum class When { kBefore, kAfter, kEval };
  int64_t step = 0;
  When when = When::kEval;
  std::string prompt;
  std::string response;
  std::optional<std::string> answer;
  std::optional<bool> correct;
};

struct RunRecord {
  std::string dir;
  // Given by NameRuns.
  std::string name;
  // The ends of the interval of metric M are "M_low" and "M_high".
  std::map<std::string, Series> series;
  // The times of the first and the last line with numbers, in seconds since 1970.
  std::optional<double> first_time_s, last_time_s;
  // The numbers of summary.json.
  std::map<std::string, double> summary;
  bool has_summary = false;
  // The run has written its final model or a summary, and no continuation of it is under way.
  bool has_ended = false;
  // Empty if there is none.
  std::string config_yaml;
  // The paths and values of config.yaml, in its order.
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<Sample> samples;
  // Remarks for the reader of the page, in whole sentences.
  std::vector<std::string> notes;

  // Returns nullptr if the metric was never recorded, or only as null.
  const Series* Find(const std::string& metric) const;
  // Returns whether any metric has a value.
  bool RecordedAnything() const;
  // Returns the last step of any metric, or 0 if there is none.
  int64_t LastStep() const;
  std::optional<double> Summary(const std::string& key) const;
  // Returns the value in config.yaml, or "" if it has none.
  std::string SettingValue(const std::string& path) const;
};

// Returns the errors of WriteReport (report.h).
absl::StatusOr<RunRecord> ReadRun(const std::string& dir);

// Names each run by its run.name if no other run has it, and otherwise by the part of its
// directory's path that differs from those of the others. Runs of equal paths get a number.
void NameRuns(std::vector<RunRecord>* runs);

}  // namespace taopd::report
