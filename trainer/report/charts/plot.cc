#include "trainer/report/charts/plot.h"

#include <algorithm>

#include "trainer/report/page/html.h"

namespace taopd::report {

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
