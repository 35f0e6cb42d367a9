#include "trainer/report/charts/chart_lines.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "trainer/report/charts/curve.h"

namespace taopd::report {
namespace {

// Returns the interval's ends at the steps of `series`, and NaN where there are none.
Series AtSteps(const Series& series, const Series& ends) {
  Series matched;
  size_t next = 0;
  for (const Point& point : series) {
    while (next < ends.size() && ends[next].step < point.step) ++next;
    const bool found = next < ends.size() && ends[next].step == point.step;
    matched.push_back(
        {point.step, found ? ends[next].value : std::numeric_limits<double>::quiet_NaN()});
  }
  return matched;
}

}  // namespace

std::vector<Line> CollectLines(const ChartSpec& spec, const std::vector<RunRecord>& runs) {
  std::vector<Line> lines;
  for (size_t q = 0; q < spec.quantities.size(); ++q) {
    const ChartQuantity& quantity = spec.quantities[q];
    for (size_t run = 0; run < runs.size(); ++run) {
      const Series* series = runs[run].Find(quantity.metric);
      if (series == nullptr) continue;
      Line line;
      line.run = run;
      line.quantity = q;
      line.raw = *series;
      const bool noisy = spec.style == ChartSpec::Style::kNoisy;
      line.window = noisy ? SmoothingWindow(series->size()) : 1;
      const Series* low = runs[run].Find(quantity.metric + "_low");
      const Series* high = runs[run].Find(quantity.metric + "_high");
      if (low != nullptr && high != nullptr) {
        line.low = AtSteps(*series, *low);
        line.high = AtSteps(*series, *high);
      }
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

Scale StepScale(const std::vector<RunRecord>& runs) {
  int64_t first = std::numeric_limits<int64_t>::max(), last = 0;
  for (const RunRecord& run : runs) {
    for (const auto& [name, series] : run.series) {
      first = std::min(first, series.front().step);
      last = std::max(last, series.back().step);
    }
  }
  return MakeStepScale(static_cast<double>(std::min(first, last)), static_cast<double>(last), 5);
}

Scale ValueScale(const std::vector<Line>& lines, const ScaleOptions& options) {
  std::vector<double> values;
  for (const Line& line : lines) {
    for (const Series* series : {&line.raw, &line.low, &line.high}) {
      for (const Point& point : *series) {
        if (std::isfinite(point.value)) values.push_back(point.value);
      }
    }
  }
  return MakeScale(values, options);
}

}  // namespace taopd::report
