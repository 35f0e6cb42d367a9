// What a run left in its directory, read and checked.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

struct Point {
  int64_t step = 0;
  double value = 0;  // NaN: recorded as null, a gap in the curve
};
using Series = std::vector<Point>;  // steps rise

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
  std::string name;  // the directory's last part
  std::map<std::string, Series> series;
  std::optional<double> first_time_s, last_time_s;  // seconds since 1970, of lines with numbers
  std::map<std::string, double> summary;            // the numbers of summary.json
  bool has_summary = false;
  std::string config_yaml;  // empty: none
  std::vector<Sample> samples;
  std::vector<std::string> notes;  // what the reader of the page has to know

  // nullptr when it was never recorded, or only as null.
  const Series* Find(const std::string& metric) const;
  std::optional<double> Summary(const std::string& key) const;
};

absl::StatusOr<RunRecord> ReadRun(const std::string& dir);

// Runs whose names are equal get their directories as names, and, where these are equal too, a
// number.
void MakeNamesUnique(std::vector<RunRecord>* runs);

}  // namespace taopd
