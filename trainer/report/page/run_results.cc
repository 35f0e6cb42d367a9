#include "trainer/report/page/run_results.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <string>

namespace taopd::report {
namespace {

std::optional<MeasuredShare> FromSummary(const RunRecord& run, const std::string& key) {
  const std::optional<double> value = run.Summary(key);
  if (!value) return std::nullopt;
  return MeasuredShare{*value, run.Summary(key + "_low"), run.Summary(key + "_high"),
                       run.Summary(key + "_n")};
}

std::optional<double> ValueAt(const RunRecord& run, const std::string& metric, int64_t step) {
  const Series* series = run.Find(metric);
  if (series == nullptr) return std::nullopt;
  for (const Point& point : *series) {
    if (point.step == step && std::isfinite(point.value)) return point.value;
  }
  return std::nullopt;
}

// Returns the first and the last finite point, or one point if there is only one.
std::vector<Point> Ends(const RunRecord& run, const std::string& metric) {
  std::vector<Point> finite;
  if (const Series* series = run.Find(metric)) {
    std::copy_if(series->begin(), series->end(), std::back_inserter(finite),
                 [](const Point& point) { return std::isfinite(point.value); });
  }
  if (finite.size() > 2) finite.erase(finite.begin() + 1, finite.end() - 1);
  return finite;
}

std::optional<double> Median(const RunRecord& run, const std::string& metric) {
  const Series* series = run.Find(metric);
  if (series == nullptr) return std::nullopt;
  std::vector<double> values;
  for (const Point& point : *series) {
    if (std::isfinite(point.value)) values.push_back(point.value);
  }
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

std::optional<double> Steps(const RunRecord& run) {
  if (const auto steps = run.Summary("steps")) return steps;
  if (run.series.empty()) return std::nullopt;
  return static_cast<double>(run.LastStep());
}

std::optional<double> Seconds(const RunRecord& run) {
  if (const auto seconds = run.Summary("seconds")) return seconds;
  if (!run.first_time_s || !(*run.last_time_s > *run.first_time_s)) return std::nullopt;
  return *run.last_time_s - *run.first_time_s;
}

std::optional<double> Mean(const std::vector<RunResults>& runs,
                           std::optional<double> RunResults::*member) {
  double sum = 0;
  for (const RunResults& results : runs) {
    if (!(results.*member)) return std::nullopt;
    sum += *(results.*member);
  }
  return sum / static_cast<double>(runs.size());
}

std::optional<MeasuredShare> Mean(const std::vector<RunResults>& runs,
                                  std::optional<MeasuredShare> RunResults::*member) {
  std::vector<double> values;
  for (const RunResults& results : runs) {
    if (!(results.*member)) return std::nullopt;
    values.push_back((results.*member)->value);
  }
  const auto [low, high] = std::ranges::minmax_element(values);
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return MeasuredShare{sum / static_cast<double>(values.size()), *low, *high, std::nullopt};
}

}  // namespace

RunResults ResultsOf(const RunRecord& run) {
  RunResults results;
  results.steps = Steps(run);
  results.seconds = Seconds(run);
  results.tokens_per_s = Median(run, "time/tokens_per_s");
  results.teacher = FromSummary(run, "teacher_accuracy");
  results.before = FromSummary(run, "student_accuracy_before");
  results.after = FromSummary(run, "student_accuracy_after");
  results.kl_before = run.Summary("student_kl_to_teacher_before");
  results.kl_after = run.Summary("student_kl_to_teacher_after");
  if (run.has_summary) return results;

  results.from_evaluations = true;
  const auto measured = [&](const Point& point) {
    return MeasuredShare{point.value, ValueAt(run, "eval/accuracy_low", point.step),
                         ValueAt(run, "eval/accuracy_high", point.step),
                         ValueAt(run, "eval/n", point.step)};
  };
  const std::vector<Point> accuracy = Ends(run, "eval/accuracy"),
                           kl = Ends(run, "eval/kl_to_teacher");
  if (!accuracy.empty()) results.before = measured(accuracy.front());
  if (accuracy.size() > 1) results.after = measured(accuracy.back());
  if (!kl.empty()) results.kl_before = kl.front().value;
  if (kl.size() > 1) results.kl_after = kl.back().value;
  return results;
}

RunResults MeanResults(const std::vector<RunResults>& runs) {
  if (runs.size() == 1) return runs[0];
  RunResults mean;
  for (const auto member : {&RunResults::teacher, &RunResults::before, &RunResults::after}) {
    mean.*member = Mean(runs, member);
  }
  for (const auto member : {&RunResults::kl_before, &RunResults::kl_after, &RunResults::steps,
                            &RunResults::seconds, &RunResults::tokens_per_s}) {
    mean.*member = Mean(runs, member);
  }
  mean.from_evaluations =
      std::ranges::any_of(runs, [](const RunResults& results) { return results.from_evaluations; });
  return mean;
}

std::optional<double> GapClosed(const RunResults& results) {
  if (!results.teacher || !results.before || !results.after) return std::nullopt;
  const double gap = results.teacher->value - results.before->value;
  if (gap <= 0) return std::nullopt;
  return (results.after->value - results.before->value) / gap;
}

}  // namespace taopd::report
