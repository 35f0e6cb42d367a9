#include "trainer/report/charts/chart.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "trainer/report/charts/plot.h"
#include "trainer/report/charts/run_style.h"
#include "trainer/report/page/html.h"

namespace taopd::report {
namespace {

struct Line {
  // Indices of the run and of the spec's quantity.
  size_t run = 0;
  size_t quantity = 0;
  Series raw;
  // The ends of the confidence interval at the steps of `raw`, NaN where there is none. Both are
  // empty if the run did not record them.
  Series low, high;
  // The window of the moving average; 1 means none.
  int window = 1;
};

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

// Returns one line for each run and recorded quantity, ordered by quantity.
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

// Returns the horizontal scale. All charts share it, so that charts above each other can be
// compared.
Scale StepScale(const std::vector<RunRecord>& runs) {
  int64_t first = std::numeric_limits<int64_t>::max(), last = 0;
  for (const RunRecord& run : runs) {
    for (const auto& [name, series] : run.series) {
      first = std::min(first, series.front().step);
      last = std::max(last, series.back().step);
    }
  }
  return MakeStepScale(static_cast<double>(std::min(first, last)), static_cast<double>(last));
}

// Returns the scale for all finite values of the lines and of their intervals.
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

// The limit on the points of each line. Decimated keeps up to twice as many.
constexpr int kMaxPoints = 300;

std::string RenderAxes(const Plot& plot) {
  std::string out = "<g class=\"grid\">";
  for (const Tick& tick : plot.y().ticks) {
    const std::string y = Coordinate(plot.Y(tick.value));
    out += Concat("<path d=\"M", kPlotLeft, " ", y, "H", kPlotRight, "\"/>");
  }
  out += "</g><g class=\"ticks\">" + TickLabels(plot);
  return out + Concat("<text x=\"", kPlotRight, "\" y=\"", kPlotBottom + 27,
                      "\" text-anchor=\"end\" class=\"axis\">step</text></g>",
                      "<path class=\"base\" d=\"M", kPlotLeft, " ", kPlotBottom, "H", kPlotRight,
                      "\"/>");
}

std::string RenderLine(const Plot& plot, const ChartSpec& spec, const Line& line) {
  const std::string dashed = line.quantity > 0 ? " dashed" : "";
  const bool smooth = line.window > 1;
  std::string out =
      Concat("<g class=\"run ", RunClass(line.run), "\" data-run=\"", line.run, "\">");
  if (!line.low.empty()) {
    const auto shown = [&](const Series& series) {
      return Thinned(smooth ? Smoothed(series, line.window, plot.y().log) : series, kMaxPoints);
    };
    out += "<path class=\"band\" d=\"" +
           BandPath(plot, shown(line.raw), shown(line.low), shown(line.high)) + "\"/>";
  }
  if (smooth) {
    out += "<path class=\"raw\" d=\"" + LinePath(plot, Decimated(line.raw, kMaxPoints)) + "\"/>";
  }
  const Series bold =
      Decimated(smooth ? Smoothed(line.raw, line.window, plot.y().log) : line.raw, kMaxPoints);
  out += "<path class=\"line" + dashed + "\" d=\"" + LinePath(plot, bold) + "\"/>";
  std::string marks;
  const bool all_marks = spec.style == ChartSpec::Style::kPoints && line.raw.size() <= 60;
  for (size_t i = bold.size(); i > 0; --i) {
    if (!plot.Shows(bold[i - 1].value)) continue;
    marks += RunMark(line.run, plot.X(bold[i - 1].step), plot.Y(bold[i - 1].value));
    // Without `all_marks` there is one mark, at the end of the line.
    if (!all_marks) break;
  }
  return out + "<path class=\"mark\" d=\"" + marks + "\"/></g>";
}

// Returns the text that a screen reader reads instead of the drawing.
std::string Describe(const ChartSpec& spec, const std::vector<Line>& lines,
                     const std::vector<RunRecord>& runs) {
  std::string out = spec.hint;
  for (const Line& line : lines) {
    const auto finite = [](const Point& point) { return std::isfinite(point.value); };
    const auto first = std::ranges::find_if(line.raw, finite);
    const auto last = std::find_if(line.raw.rbegin(), line.raw.rend(), finite);
    const std::string& label = spec.quantities[line.quantity].label;
    out += Concat(" ", runs[line.run].name, label.empty() ? "" : ", " + label, ": from ",
                  FormatNumber(first->value, spec.scale.style), " at step ", first->step, " to ",
                  FormatNumber(last->value, spec.scale.style), " at step ", last->step, ".");
  }
  return out;
}

nlohmann::ordered_json LineData(const Line& line, const ChartSpec& spec) {
  nlohmann::ordered_json data;
  data["run"] = line.run;
  if (!spec.quantities[line.quantity].label.empty()) {
    data["label"] = spec.quantities[line.quantity].label;
  }
  const auto values = [](const Series& series) {
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    for (const Point& point : series) {
      // The page shows fewer than six digits.
      if (std::isfinite(point.value)) {
        out.push_back(std::strtod(absl::StrFormat("%.6g", point.value).c_str(), nullptr));
      } else {
        out.push_back(nullptr);
      }
    }
    return out;
  };
  const Series kept = Decimated(line.raw, kMaxPoints);
  data["x"] = nlohmann::ordered_json::array();
  for (const Point& point : kept) data["x"].push_back(point.step);
  data["y"] = values(kept);
  if (!line.low.empty() && kept.size() == line.raw.size()) {
    data["low"] = values(line.low);
    data["high"] = values(line.high);
  }
  return data;
}

// Returns one sentence that names the runs that lack quantities. Runs that recorded nothing at all
// are left out: they have a note at the top of the page.
std::string Missing(const ChartSpec& spec, const std::vector<RunRecord>& runs) {
  // Pairs of the missing quantities and the names of the runs that lack them.
  std::vector<std::pair<std::string, std::string>> groups;
  for (const RunRecord& run : runs) {
    if (!run.RecordedAnything()) continue;
    std::string labels;
    size_t num_missing = 0;
    for (const ChartQuantity& quantity : spec.quantities) {
      if (run.Find(quantity.metric) != nullptr) continue;
      labels += (labels.empty() ? "" : ", ") + quantity.label;
      ++num_missing;
    }
    if (num_missing == 0) continue;
    if (num_missing == spec.quantities.size()) labels.clear();
    const auto group =
        std::ranges::find_if(groups, [&](const auto& other) { return other.first == labels; });
    if (group == groups.end()) {
      groups.emplace_back(labels, run.name);
    } else {
      group->second += ", " + run.name;
    }
  }
  std::string out;
  for (const auto& [labels, names] : groups) {
    out += (out.empty() ? " Not recorded by " : "; by ") + names;
    if (!labels.empty()) out += " (" + labels + ")";
  }
  return out.empty() ? out : out + ".";
}

// Returns the remarks that a reader needs to understand the drawing.
std::string Remarks(const ChartSpec& spec, const std::vector<Line>& lines,
                    const std::vector<RunRecord>& runs, const Plot& plot) {
  std::string out;
  size_t num_hidden = 0;
  for (const Line& line : lines) {
    for (const Point& point : line.raw) {
      if (std::isfinite(point.value) && !plot.Shows(point.value)) ++num_hidden;
    }
  }
  if (plot.y().log) out += " Log scale.";
  if (num_hidden > 0) out += Concat(" ", num_hidden, " value(s) of 0 have no place on it.");
  return out + Missing(spec, runs);
}

// Returns the key of solid and dashed lines. Empty for a chart of one quantity.
std::string RenderKey(const ChartSpec& spec) {
  if (spec.quantities.size() < 2) return "";
  std::string out = "<p class=\"key\" aria-hidden=\"true\">";
  for (size_t q = 0; q < spec.quantities.size(); ++q) {
    out += Concat("<span><svg viewBox=\"0 0 28 8\"><path class=\"line", q > 0 ? " dashed" : "",
                  "\" d=\"M2 4H26\"/></svg>", EscapeHtml(spec.quantities[q].label), "</span>");
  }
  return out + "</p>";
}

// Returns the data from which report.js shows the values under the pointer.
nlohmann::ordered_json ChartData(const ChartSpec& spec, const Plot& plot,
                                 const std::vector<Line>& lines) {
  nlohmann::ordered_json chart;
  chart["id"] = spec.id;
  chart["percent"] = spec.scale.style == NumberStyle::kPercent;
  chart["plot"] = {kPlotLeft, kPlotRight, kPlotTop, kPlotBottom};
  chart["steps"] = {plot.x().min, plot.x().max};
  chart["values"] = {plot.y().min, plot.y().max};
  chart["log"] = plot.y().log;
  chart["lines"] = nlohmann::ordered_json::array();
  for (const Line& line : lines) chart["lines"].push_back(LineData(line, spec));
  return chart;
}

}  // namespace

bool AnyRecorded(const ChartSpec& spec, const std::vector<RunRecord>& runs) {
  return !CollectLines(spec, runs).empty();
}

std::string RenderChart(const ChartSpec& spec, const std::vector<RunRecord>& runs,
                        nlohmann::ordered_json* data) {
  const std::vector<Line> lines = CollectLines(spec, runs);
  std::string out = Concat("<figure class=\"chart\" id=\"", spec.id, "\"><figcaption><h3>",
                           EscapeHtml(spec.title), "</h3>");
  if (lines.empty()) {
    return out + "<p>" + EscapeHtml(spec.hint) +
           "</p></figcaption><p class=\"missing\">not recorded</p></figure>\n";
  }
  const Plot plot(StepScale(runs), ValueScale(lines, spec.scale));
  out += "<p>" + EscapeHtml(spec.hint + Remarks(spec, lines, runs, plot)) + "</p>";
  out += RenderKey(spec);
  out += Concat("</figcaption><div class=\"plot\" tabindex=\"0\" role=\"group\" aria-label=\"",
                EscapeHtml(spec.title), ": arrow keys show values\"><svg viewBox=\"0 0 ",
                kPlotWidth, " ", kPlotHeight, "\" role=\"img\" aria-labelledby=\"", spec.id,
                "-title ", spec.id, "-desc\"><title id=\"", spec.id, "-title\">",
                EscapeHtml(spec.title), "</title><desc id=\"", spec.id, "-desc\">",
                EscapeHtml(Describe(spec, lines, runs)), "</desc>", RenderAxes(plot));
  for (const Line& line : lines) out += RenderLine(plot, spec, line);
  out += "<g class=\"cursor\"></g></svg></div></figure>\n";

  data->push_back(ChartData(spec, plot, lines));
  return out;
}

}  // namespace taopd::report
