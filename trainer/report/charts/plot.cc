#include "trainer/report/charts/plot.h"

#include <algorithm>
#include <limits>

#include "trainer/report/page/html.h"

namespace taopd::report {

Series Smoothed(const Series& series, int window, bool geometric) {
  const auto n = static_cast<int64_t>(series.size());
  std::vector<double> values;
  for (const Point& point : series) {
    const bool has_place = std::isfinite(point.value) && (!geometric || point.value > 0);
    const double value = geometric ? std::log(point.value) : point.value;
    values.push_back(has_place ? value : std::numeric_limits<double>::quiet_NaN());
  }
  Series smoothed = series;
  for (int64_t i = 0; i < n; ++i) {
    smoothed[i].value = std::numeric_limits<double>::quiet_NaN();
    if (std::isnan(values[i])) continue;
    // Each point gets a new sum, because a running sum would keep the rounding error of a huge
    // value.
    double sum = 0;
    int count = 0;
    const int64_t end = std::min(n, i + window / 2 + 1);
    for (int64_t j = std::max<int64_t>(0, i - window / 2); j < end; ++j) {
      if (std::isnan(values[j])) continue;
      sum += values[j] / window;
      ++count;
    }
    const double mean = sum / count * window;
    smoothed[i].value = geometric ? std::exp(mean) : mean;
  }
  return smoothed;
}

int SmoothingWindow(size_t num_points) {
  if (num_points < 40) return 1;
  return static_cast<int>(std::min<size_t>(num_points / 30, 200)) / 2 * 2 + 3;
}

Series Decimated(const Series& series, int max_points) {
  if (series.size() <= static_cast<size_t>(2 * max_points)) return series;
  const int64_t first_step = series.front().step;
  const double steps_per_bucket =
      (static_cast<double>(series.back().step) - static_cast<double>(first_step) + 1) / max_points;
  const auto bucket_of = [&](const Point& point) {
    return static_cast<int64_t>(static_cast<double>(point.step - first_step) / steps_per_bucket);
  };
  Series kept;
  for (size_t start = 0; start < series.size();) {
    size_t end = start, low = start, high = start, gap = series.size();
    const int64_t bucket = bucket_of(series[start]);
    for (; end < series.size() && bucket_of(series[end]) == bucket; ++end) {
      if (!std::isfinite(series[end].value)) {
        gap = end;
        continue;
      }
      if (!(series[low].value <= series[end].value)) low = end;
      if (!(series[high].value >= series[end].value)) high = end;
    }
    std::vector<size_t> indices = {low, high};
    if (start == 0) indices.push_back(0);
    if (end == series.size()) indices.push_back(end - 1);
    if (gap < series.size()) indices.push_back(gap);
    std::ranges::sort(indices);
    indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
    for (const size_t i : indices) kept.push_back(series[i]);
    start = end;
  }
  return kept;
}

Series Thinned(const Series& series, int max_points) {
  const size_t stride = series.size() / static_cast<size_t>(max_points) + 1;
  Series kept;
  for (size_t i = 0; i < series.size(); i += stride) kept.push_back(series[i]);
  if (stride > 1 && (series.size() - 1) % stride != 0) kept.push_back(series.back());
  return kept;
}

std::string LinePath(const Plot& plot, const Series& series) {
  std::string path;
  bool pen_down = false;
  for (size_t i = 0; i < series.size(); ++i) {
    if (!plot.Shows(series[i].value)) {
      pen_down = false;
      continue;
    }
    const std::string at =
        Coordinate(plot.X(series[i].step)) + " " + Coordinate(plot.Y(series[i].value));
    const bool next_shown = i + 1 < series.size() && plot.Shows(series[i + 1].value);
    path += (pen_down ? "L" : "M") + at;
    if (!pen_down && !next_shown) path += "h0";
    pen_down = true;
  }
  return path;
}

std::string BandPath(const Plot& plot, const Series& values, const Series& low,
                     const Series& high) {
  std::string path;
  for (size_t start = 0; start < values.size();) {
    const auto shown = [&](size_t i) {
      return i < values.size() && plot.Shows(values[i].value) && plot.Shows(low[i].value) &&
             plot.Shows(high[i].value);
    };
    size_t end = start;
    while (shown(end)) ++end;
    for (size_t i = start; i < end; ++i) {
      path += (i == start ? "M" : "L") + Coordinate(plot.X(high[i].step)) + " " +
              Coordinate(plot.Y(high[i].value));
    }
    for (size_t i = end; i > start; --i) {
      path +=
          "L" + Coordinate(plot.X(low[i - 1].step)) + " " + Coordinate(plot.Y(low[i - 1].value));
    }
    if (end > start) path += "Z";
    start = std::max(end, start + 1);
  }
  return path;
}

std::string TickLabels(const Plot& plot) {
  std::string out;
  for (const Tick& tick : plot.y().ticks) {
    out += Concat("<text x=\"", kPlotLeft - 6, "\" y=\"", Coordinate(plot.Y(tick.value) + 3.5),
                  "\" text-anchor=\"end\">", tick.label, "</text>");
  }
  for (const Tick& tick : plot.x().ticks) {
    out += Concat("<text x=\"", Coordinate(plot.X(static_cast<int64_t>(tick.value))), "\" y=\"",
                  kPlotBottom + 16, "\" text-anchor=\"middle\">", tick.label, "</text>");
  }
  return out;
}

}  // namespace taopd::report
