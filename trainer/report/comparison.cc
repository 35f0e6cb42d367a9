#include "trainer/report/comparison.h"

#include <absl/strings/match.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "common/base/status.h"

namespace taopd::report {
namespace {

constexpr char kSeed[] = "run.seed";
// Settings whose values may differ between the seeds of a group.
constexpr const char* kPerSeed[] = {"student.model", "model.init", "data.train", "data.val",
                                    "teacher.endpoints"};

bool IsNeverCompared(const std::string& path) {
  return path == "run.dir" || path == "run.name" || path == kSeed || absl::EndsWith(path, "_port");
}

bool IsPerSeed(const std::string& path) {
  return std::find(std::begin(kPerSeed), std::end(kPerSeed), path) != std::end(kPerSeed);
}

// Returns the paths of the settings whose values are not the same in all runs.
std::vector<std::string> Differing(const std::vector<RunRecord>& runs) {
  std::vector<std::string> paths;
  std::set<std::string> seen;
  for (const RunRecord& run : runs) {
    for (const auto& [path, value] : run.settings) {
      if (IsNeverCompared(path) || !seen.insert(path).second) continue;
      const bool differs = std::ranges::any_of(
          runs, [&](const RunRecord& other) { return other.SettingValue(path) != value; });
      if (differs) paths.push_back(path);
    }
  }
  return paths;
}

using Groups = std::vector<std::vector<size_t>>;  // indices of runs

bool RepeatsASeed(const std::vector<size_t>& group, const std::vector<RunRecord>& runs) {
  std::set<std::string> seeds;
  return !std::ranges::all_of(
      group, [&](size_t run) { return seeds.insert(runs[run].SettingValue(kSeed)).second; });
}

// Splits the groups for which `splits` holds, by the runs' values of `key`.
template <typename Splits, typename Key>
Groups Split(const Groups& groups, const Splits& splits, const Key& key) {
  Groups parts;
  for (const std::vector<size_t>& group : groups) {
    if (!splits(group)) {
      parts.push_back(group);
      continue;
    }
    std::map<std::string, size_t> part_of;
    for (const size_t run : group) {
      const auto [place, is_new] = part_of.emplace(key(run), parts.size());
      if (is_new) parts.emplace_back();
      parts[place->second].push_back(run);
    }
  }
  std::ranges::sort(parts);
  return parts;
}

// Groups the runs, and removes from `paths` the settings that distinguish no groups.
Groups GroupRuns(const std::vector<RunRecord>& runs, std::vector<std::string>* paths) {
  Groups groups(1);
  for (size_t run = 0; run < runs.size(); ++run) groups[0].push_back(run);
  const auto repeats = [&](const std::vector<size_t>& group) { return RepeatsASeed(group, runs); };
  std::vector<std::string> distinguishing;
  for (const bool per_seed : {false, true}) {
    for (const std::string& path : *paths) {
      if (IsPerSeed(path) != per_seed) continue;
      const size_t num_before = groups.size();
      groups = Split(
          groups, [&](const std::vector<size_t>& group) { return !per_seed || repeats(group); },
          [&](size_t run) { return runs[run].SettingValue(path); });
      if (!per_seed || groups.size() > num_before) distinguishing.push_back(path);
    }
  }
  *paths = std::move(distinguishing);
  return Split(
      groups,
      [&](const std::vector<size_t>& group) {
        return runs[group[0]].settings.empty() || repeats(group);
      },
      [](size_t run) { return std::to_string(run); });
}

// Returns the part of a setting's path that a name needs: "lr", and "objective" for objective.name.
std::string ShortPath(const std::string& path) {
  const std::string stem = absl::EndsWith(path, ".name") ? path.substr(0, path.size() - 5) : path;
  return stem.substr(stem.rfind('.') + 1);
}

// Names the lines by the settings that distinguish them.
void NameLines(const std::vector<std::string>& paths, std::vector<RunRecord>* lines) {
  std::map<std::string, int> num_short;
  for (const std::string& path : paths) ++num_short[ShortPath(path)];
  std::map<std::string, int> num_seen;
  for (RunRecord& line : *lines) {
    std::vector<std::string> parts;
    for (const std::string& path : paths) {
      const std::string key = num_short[ShortPath(path)] > 1 ? path : ShortPath(path);
      const std::string value = line.SettingValue(path);
      const bool is_name = absl::EndsWith(path, ".name");
      parts.push_back(is_name && !value.empty() ? value : key + "=" + value);
    }
    if (!parts.empty()) line.name = absl::StrJoin(parts, ", ");
    if (const int nth = ++num_seen[line.name]; nth > 1) line.name += Concat(" (", nth, ")");
  }
}

struct Range {
  double sum = 0;
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  size_t num_runs = 0;
};

// Adds the mean and the range of a metric at the steps that all of these runs recorded.
void AddMean(const std::string& metric, const std::vector<const Series*>& runs, RunRecord* line) {
  std::map<int64_t, Range> by_step;
  for (const Series* series : runs) {
    for (const Point& point : *series) {
      Range& range = by_step[point.step];
      range.sum += point.value;
      range.low = std::min(range.low, point.value);
      range.high = std::max(range.high, point.value);
      ++range.num_runs;
    }
  }
  Series mean, low, high;
  for (const auto& [step, range] : by_step) {
    if (range.num_runs < runs.size()) continue;
    const double value = range.sum / static_cast<double>(range.num_runs);
    mean.push_back({step, value});
    low.push_back({step, std::isfinite(value) ? range.low : value});
    high.push_back({step, std::isfinite(value) ? range.high : value});
  }
  if (mean.empty()) return;
  line->series[metric] = std::move(mean);
  line->series[metric + "_low"] = std::move(low);
  line->series[metric + "_high"] = std::move(high);
}

bool EndsAnInterval(const std::string& metric, const RunRecord& run) {
  for (const char* end : {"_low", "_high"}) {
    if (absl::EndsWith(metric, end) &&
        run.series.count(metric.substr(0, metric.size() - std::string(end).size())) > 0) {
      return true;
    }
  }
  return false;
}

RunRecord MeanOf(const std::vector<RunRecord>& runs, const std::vector<size_t>& group) {
  RunRecord line;
  const RunRecord& first = runs[group[0]];
  line.dir = first.dir;
  line.name = first.name;
  line.settings = first.settings;
  line.has_ended = true;
  std::map<std::string, std::vector<const Series*>> series;
  for (const size_t i : group) {
    line.has_ended &= runs[i].has_ended;
    for (const auto& [metric, recorded] : runs[i].series) {
      if (!EndsAnInterval(metric, runs[i])) series[metric].push_back(&recorded);
    }
  }
  for (const auto& [metric, recorded] : series) AddMean(metric, recorded, &line);
  return line;
}

// Notes the runs that end before the longest of their group: the mean needs a value of every run.
void NoteShortRuns(const std::vector<RunRecord>& runs, const std::vector<size_t>& group,
                   const std::string& name, std::vector<std::string>* notes) {
  int64_t longest = 0;
  for (const size_t i : group) longest = std::max(longest, runs[i].LastStep());
  for (const size_t i : group) {
    if (runs[i].LastStep() == longest) continue;
    notes->push_back(Concat(name, ": ", runs[i].name, " ends at step ", runs[i].LastStep(), " of ",
                            longest, "; the mean covers only the steps that all runs have."));
  }
}

// Returns the name of a comparison that has only one group.
std::string NameOfSeeds(const std::vector<RunRecord>& runs) {
  const std::string name = runs[0].SettingValue("run.name");
  return Concat(name.empty() ? "run" : name, ", ", runs.size(), " seeds");
}

}  // namespace

Comparison CompareRuns(const std::vector<RunRecord>& runs) {
  Comparison comparison;
  if (runs.empty()) return comparison;
  comparison.settings = Differing(runs);
  const Groups groups = GroupRuns(runs, &comparison.settings);
  comparison.line_of_run.resize(runs.size());
  for (const std::vector<size_t>& group : groups) {
    for (const size_t run : group) comparison.line_of_run[run] = comparison.lines.size();
    comparison.lines.push_back(group.size() == 1 ? runs[group[0]] : MeanOf(runs, group));
  }
  if (!comparison.HasSeeds()) return comparison;
  NameLines(comparison.settings, &comparison.lines);
  if (comparison.lines.size() == 1) comparison.lines[0].name = NameOfSeeds(runs);
  for (size_t i = 0; i < groups.size(); ++i) {
    NoteShortRuns(runs, groups[i], comparison.lines[i].name, &comparison.notes);
  }
  return comparison;
}

}  // namespace taopd::report
