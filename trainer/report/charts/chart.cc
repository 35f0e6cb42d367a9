#include "trainer/report/charts/chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "trainer/report/charts/curve.h"
#include "trainer/report/page/html.h"

namespace taopd {
namespace {

// The drawing's own units. The page shows it at about 0.8 to 1.4 times this size.
constexpr double kWidth = 440, kHeight = 250;
constexpr double kLeft = 48, kRight = 428, kTop = 12, kBottom = 222;
constexpr int kMaxPoints = 300;  // twice that many are drawn of a line

struct Line {
  size_t run = 0;
  size_t quantity = 0;
  Series raw;
  Series low, high;  // as long as raw, or empty
  int window = 1;
};

class Plot {
 public:
  Plot(Scale x, Scale y) : x_(std::move(x)), y_(std::move(y)) {}
  double X(int64_t step) const {
    return kLeft + (kRight - kLeft) * x_.Fraction(static_cast<double>(step));
  }
  double Y(double value) const { return kBottom - (kBottom - kTop) * y_.Fraction(value); }
  bool Shows(double value) const { return std::isfinite(value) && (!y_.log || value > 0); }
  const Scale& x() const { return x_; }
  const Scale& y() const { return y_; }

 private:
  Scale x_, y_;
};

// "M..L.." through the points; a gap starts a new piece. A piece of one point is a dot (the round
// line cap of a line without length).
std::string PathData(const Plot& plot, const Series& series) {
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

// Around the interval, forth along the upper ends and back along the lower ones.
std::string BandData(const Plot& plot, const Line& line) {
  std::string path;
  for (size_t start = 0; start < line.raw.size();) {
    const auto shown = [&](size_t i) {
      return i < line.raw.size() && plot.Shows(line.raw[i].value) &&
             plot.Shows(line.low[i].value) && plot.Shows(line.high[i].value);
    };
    size_t end = start;
    while (shown(end)) ++end;
    for (size_t i = start; i < end; ++i) {
      path += (i == start ? "M" : "L") + Coordinate(plot.X(line.high[i].step)) + " " +
              Coordinate(plot.Y(line.high[i].value));
    }
    for (size_t i = end; i > start; --i) {
      path += "L" + Coordinate(plot.X(line.low[i - 1].step)) + " " +
              Coordinate(plot.Y(line.low[i - 1].value));
    }
    if (end > start) path += "Z";
    start = std::max(end, start + 1);
  }
  return path;
}

// The interval's ends at the steps of `series`, NaN where there is none.
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
      const Series* low = quantity.low.empty() ? nullptr : runs[run].Find(quantity.low);
      const Series* high = quantity.high.empty() ? nullptr : runs[run].Find(quantity.high);
      if (low != nullptr && high != nullptr) {
        line.low = AtSteps(*series, *low);
        line.high = AtSteps(*series, *high);
      }
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

// The steps of all charts are the same, so that charts above each other can be compared.
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

std::string RenderAxes(const Plot& plot) {
  std::string out = "<g class=\"grid\">";
  for (const Tick& tick : plot.y().ticks) {
    const std::string y = Coordinate(plot.Y(tick.value));
    out += Concat("<path d=\"M", kLeft, " ", y, "H", kRight, "\"/>");
  }
  out += "</g><g class=\"ticks\">";
  for (const Tick& tick : plot.y().ticks) {
    out += Concat("<text x=\"", kLeft - 6, "\" y=\"", Coordinate(plot.Y(tick.value) + 3.5),
                  "\" text-anchor=\"end\">", tick.label, "</text>");
  }
  for (const Tick& tick : plot.x().ticks) {
    out += Concat("<text x=\"", Coordinate(plot.X(static_cast<int64_t>(tick.value))), "\" y=\"",
                  kBottom + 16, "\" text-anchor=\"middle\">", tick.label, "</text>");
  }
  return out + Concat("<text x=\"", kRight, "\" y=\"", kBottom + 27,
                      "\" text-anchor=\"end\" class=\"axis\">step</text></g>",
                      "<path class=\"base\" d=\"M", kLeft, " ", kBottom, "H", kRight, "\"/>");
}

std::string RenderLine(const Plot& plot, const ChartSpec& spec, const Line& line) {
  const std::string dashed = line.quantity > 0 ? " dashed" : "";
  const bool smooth = line.window > 1;
  std::string out =
      Concat("<g class=\"run ", RunClass(line.run), "\" data-run=\"", line.run, "\">");
  if (!line.low.empty()) out += "<path class=\"band\" d=\"" + BandData(plot, line) + "\"/>";
  if (smooth) {
    out += "<path class=\"raw\" d=\"" + PathData(plot, Decimated(line.raw, kMaxPoints)) + "\"/>";
  }
  const Series bold =
      Decimated(smooth ? Smoothed(line.raw, line.window, plot.y().log) : line.raw, kMaxPoints);
  out += "<path class=\"line" + dashed + "\" d=\"" + PathData(plot, bold) + "\"/>";
  std::string marks;
  const bool all_marks = spec.style == ChartSpec::Style::kPoints && line.raw.size() <= 60;
  for (size_t i = bold.size(); i > 0; --i) {
    if (!plot.Shows(bold[i - 1].value)) continue;
    marks += RunMark(line.run, plot.X(bold[i - 1].step), plot.Y(bold[i - 1].value));
    if (!all_marks) break;  // the end of the line only
  }
  return out + "<path class=\"mark\" d=\"" + marks + "\"/></g>";
}

// What a screen reader says instead of the drawing.
std::string Describe(const ChartSpec& spec, const std::vector<Line>& lines,
                     const std::vector<RunRecord>& runs) {
  std::string out = spec.hint;
  for (const Line& line : lines) {
    const auto finite = [](const Point& point) { return std::isfinite(point.value); };
    const auto first = std::find_if(line.raw.begin(), line.raw.end(), finite);
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
      // Six digits are more than the page shows.
      if (std::isfinite(point.value)) {
        char text[32];
        std::snprintf(text, sizeof(text), "%.6g", point.value);
        out.push_back(std::strtod(text, nullptr));
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

// What the reader has to know about the drawing.
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
  for (const RunRecord& run : runs) {
    std::string missing;
    size_t num_missing = 0;
    for (const ChartQuantity& quantity : spec.quantities) {
      if (run.Find(quantity.metric) != nullptr) continue;
      missing += (missing.empty() ? "" : ", ") + quantity.label;
      ++num_missing;
    }
    if (num_missing == 0) continue;
    out += " Not recorded by " + run.name;
    out += num_missing < spec.quantities.size() ? " (" + missing + ")." : ".";
  }
  return out;
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
  if (spec.quantities.size() > 1) {
    out += "<p class=\"key\" aria-hidden=\"true\">";
    for (size_t q = 0; q < spec.quantities.size(); ++q) {
      out += Concat("<span><svg viewBox=\"0 0 28 8\"><path class=\"line", q > 0 ? " dashed" : "",
                    "\" d=\"M2 4H26\"/></svg>", EscapeHtml(spec.quantities[q].label), "</span>");
    }
    out += "</p>";
  }
  out += Concat("</figcaption><div class=\"plot\" tabindex=\"0\" role=\"group\" aria-label=\"",
                EscapeHtml(spec.title), ": arrow keys show values\"><svg viewBox=\"0 0 ", kWidth,
                " ", kHeight, "\" role=\"img\" aria-labelledby=\"", spec.id, "-title ", spec.id,
                "-desc\"><title id=\"", spec.id, "-title\">", EscapeHtml(spec.title),
                "</title><desc id=\"", spec.id, "-desc\">", EscapeHtml(Describe(spec, lines, runs)),
                "</desc>", RenderAxes(plot));
  for (const Line& line : lines) out += RenderLine(plot, spec, line);
  out += "<g class=\"cursor\"></g></svg></div></figure>\n";

  nlohmann::ordered_json chart;
  chart["id"] = spec.id;
  chart["percent"] = spec.scale.style == NumberStyle::kPercent;
  chart["plot"] = {kLeft, kRight, kTop, kBottom};
  chart["steps"] = {plot.x().min, plot.x().max};
  chart["values"] = {plot.y().min, plot.y().max};
  chart["log"] = plot.y().log;
  chart["lines"] = nlohmann::ordered_json::array();
  for (const Line& line : lines) chart["lines"].push_back(LineData(line, spec));
  data->push_back(std::move(chart));
  return out;
}

std::string RunClass(size_t run) { return Concat("r", run % kNumRunColors); }

std::string RunMark(size_t run, double x, double y) {
  struct Corner {
    double x, y;
  };
  static const std::vector<std::vector<Corner>> kMarks = {
      {{-3.4, -1.4},
       {-1.4, -3.4},
       {1.4, -3.4},
       {3.4, -1.4},
       {3.4, 1.4},
       {1.4, 3.4},
       {-1.4, 3.4},
       {-3.4, 1.4}},
      {{-3.2, -3.2}, {3.2, -3.2}, {3.2, 3.2}, {-3.2, 3.2}},
      {{0, -4.2}, {4, 3}, {-4, 3}},
      {{0, -4.4}, {4.4, 0}, {0, 4.4}, {-4.4, 0}},
      {{0, 4.2}, {4, -3}, {-4, -3}},
      {{-4, -1.2},
       {-1.2, -1.2},
       {-1.2, -4},
       {1.2, -4},
       {1.2, -1.2},
       {4, -1.2},
       {4, 1.2},
       {1.2, 1.2},
       {1.2, 4},
       {-1.2, 4},
       {-1.2, 1.2},
       {-4, 1.2}},
  };
  // Runs that share a colour differ in their marks.
  std::string path;
  for (const Corner& corner : kMarks[(run + run / kNumRunColors) % kMarks.size()]) {
    path += (path.empty() ? "M" : "L") + Coordinate(x + corner.x) + " " + Coordinate(y + corner.y);
  }
  return path + "Z";
}

}  // namespace taopd
