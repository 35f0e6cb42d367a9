#include <absl/time/time.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "trainer/report/charts/chart.h"
#include "trainer/report/charts/scale.h"
#include "trainer/report/page/html.h"
#include "trainer/report/page/page.h"

namespace taopd {
namespace {

struct Measured {
  double value = 0;
  std::optional<double> low, high, n;
};

struct Headline {
  std::optional<Measured> teacher, before, after;  // accuracies
  std::optional<double> kl_before, kl_after;
  bool from_evaluations = false;  // no summary: first and latest evaluation instead
};

std::optional<Measured> FromSummary(const RunRecord& run, const std::string& key) {
  const std::optional<double> value = run.Summary(key);
  if (!value) return std::nullopt;
  return Measured{*value, run.Summary(key + "_low"), run.Summary(key + "_high"),
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

Headline MakeHeadline(const RunRecord& run) {
  Headline headline;
  headline.teacher = FromSummary(run, "teacher_accuracy");
  headline.before = FromSummary(run, "student_accuracy_before");
  headline.after = FromSummary(run, "student_accuracy_after");
  headline.kl_before = run.Summary("kl_before");
  headline.kl_after = run.Summary("kl_after");
  if (run.has_summary) return headline;

  headline.from_evaluations = true;
  const auto ends = [&](const std::string& metric) {
    std::vector<Point> finite;
    if (const Series* series = run.Find(metric)) {
      std::copy_if(series->begin(), series->end(), std::back_inserter(finite),
                   [](const Point& point) { return std::isfinite(point.value); });
    }
    if (finite.size() > 2) finite.erase(finite.begin() + 1, finite.end() - 1);
    return finite;
  };
  const auto measured = [&](const Point& point) {
    return Measured{point.value, ValueAt(run, "eval/accuracy_low", point.step),
                    ValueAt(run, "eval/accuracy_high", point.step),
                    ValueAt(run, "eval/n", point.step)};
  };
  const std::vector<Point> accuracy = ends("eval/accuracy"), kl = ends("eval/kl_to_teacher");
  if (!accuracy.empty()) headline.before = measured(accuracy.front());
  if (accuracy.size() > 1) headline.after = measured(accuracy.back());
  if (!kl.empty()) headline.kl_before = kl.front().value;
  if (kl.size() > 1) headline.kl_after = kl.back().value;
  return headline;
}

// One decimal always, so that numbers under each other line up. Values that are no shares (a
// damaged summary) are shown as they are.
std::string Percent(double share) {
  if (!(share >= 0 && share <= 1)) return FormatNumber(share, NumberStyle::kPercent);
  return Coordinate(100 * share) + "%";
}

// "61.2%" and, small, "56.9-65.4%, n = 500".
std::string MeasuredCell(const Measured& measured) {
  std::string detail;
  if (measured.low && measured.high) {
    detail = Percent(*measured.low) + "&ndash;" + Percent(*measured.high);
  }
  if (measured.n) {
    if (!detail.empty()) detail += ", ";
    detail += "n&nbsp;=&nbsp;" + FormatNumber(*measured.n, NumberStyle::kPlain, 4);
  }
  std::string out = "<b>" + Percent(measured.value) + "</b>";
  return detail.empty() ? out : out + " <small>" + detail + "</small>";
}

std::string Duration(double seconds) {
  if (!(seconds >= 0 && seconds < 1e12)) return FormatNumber(seconds) + " s";
  const absl::Duration unit = seconds < 60 ? absl::Milliseconds(100) : absl::Seconds(1);
  return absl::FormatDuration(absl::Trunc(absl::Seconds(seconds), unit));
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

std::optional<double> GapClosed(const Headline& headline) {
  if (!headline.teacher || !headline.before || !headline.after) return std::nullopt;
  const double gap = headline.teacher->value - headline.before->value;
  if (gap <= 0) return std::nullopt;
  return (headline.after->value - headline.before->value) / gap;
}

std::optional<double> Steps(const RunRecord& run) {
  if (const auto steps = run.Summary("steps")) return steps;
  if (run.series.empty()) return std::nullopt;
  int64_t last = 0;
  for (const auto& [name, series] : run.series) last = std::max(last, series.back().step);
  return static_cast<double>(last);
}

std::optional<double> Seconds(const RunRecord& run) {
  if (const auto seconds = run.Summary("seconds")) return seconds;
  if (!run.first_time_s || !(*run.last_time_s > *run.first_time_s)) return std::nullopt;
  return *run.last_time_s - *run.first_time_s;
}

std::string MarkSvg(size_t run) {
  return Concat("<svg class=\"swatch ", RunClass(run),
                "\" viewBox=\"0 0 24 12\" aria-hidden=\"true\">",
                "<path class=\"line\" d=\"M2 6H22\"/><path class=\"mark\" d=\"",
                RunMark(run, 12, 6), "\"/></svg>");
}

double PositionPercent(double share) { return std::clamp(share, 0.0, 1.0) * 100; }

std::string Position(double share) { return Coordinate(PositionPercent(share)) + "%"; }

// A bar from 0 to 100 %: the student's way from before to after, with the teacher as a tick.
std::string Dumbbell(const RunRecord& run, size_t index, const Headline& headline) {
  const bool gain = headline.before && headline.after;
  std::string label = run.name;
  std::string out = Concat("<div class=\"result run ", RunClass(index), "\" data-run=\"", index,
                           "\"><div class=\"who\">", MarkSvg(index), "<span>", EscapeHtml(run.name),
                           "</span></div><div class=\"figures\">");
  if (headline.before) out += "<span>" + Percent(headline.before->value) + "</span>";
  if (gain) out += "<span class=\"to\">&rarr;</span><b>" + Percent(headline.after->value) + "</b>";
  if (headline.before) label += ", before " + Percent(headline.before->value);
  if (headline.after) label += ", after " + Percent(headline.after->value);
  if (headline.teacher) {
    label += ", teacher " + Percent(headline.teacher->value);
    out += "<small>teacher " + Percent(headline.teacher->value) + "</small>";
  }
  out += "</div><div class=\"track\" role=\"img\" aria-label=\"" + EscapeHtml(label) + "\">";
  const auto interval = [&](const std::optional<Measured>& measured, const char* kind) {
    if (!measured || !measured->low || !measured->high) return;
    const double low = PositionPercent(*measured->low), high = PositionPercent(*measured->high);
    out += Concat("<i class=\"interval ", kind, "\" style=\"left:", Coordinate(low),
                  "%;width:", Coordinate(std::max(0.0, high - low)), "%\"></i>");
  };
  if (gain) {
    const double from = PositionPercent(headline.before->value);
    const double to = PositionPercent(headline.after->value);
    out += Concat("<i class=\"way\" style=\"left:", Coordinate(std::min(from, to)),
                  "%;width:", Coordinate(std::abs(to - from)), "%\"></i>");
  }
  interval(headline.before, "before");
  interval(headline.after, "after");
  if (headline.teacher) {
    out += "<i class=\"teacher\" style=\"left:" + Position(headline.teacher->value) + "\"></i>";
  }
  if (headline.before) {
    out += "<i class=\"dot before\" style=\"left:" + Position(headline.before->value) + "\"></i>";
  }
  if (headline.after) {
    out += "<i class=\"dot after\" style=\"left:" + Position(headline.after->value) + "\"></i>";
  }
  return out + "</div></div>\n";
}

}  // namespace

std::string RenderHeadline(const std::vector<RunRecord>& runs) {
  std::vector<Headline> headlines;
  for (const RunRecord& run : runs) headlines.push_back(MakeHeadline(run));
  std::string out = "<section aria-labelledby=\"results\"><h2 id=\"results\">Results</h2>\n";
  const bool any_accuracy = std::any_of(headlines.begin(), headlines.end(), [](const Headline& h) {
    return h.teacher || h.before || h.after;
  });
  if (any_accuracy) {
    out += "<div class=\"card results\">";
    for (size_t i = 0; i < runs.size(); ++i) out += Dumbbell(runs[i], i, headlines[i]);
    out +=
        "<div class=\"result scale\" aria-hidden=\"true\"><div "
        "class=\"result-axis\"><span>0%</span><span>25%</span><span>50%</span>"
        "<span>75%</span><span>100%</span></div></div>"
        "<p class=\"key\" aria-hidden=\"true\"><span><i class=\"dot before\"></i>student "
        "before</span>"
        "<span><i class=\"dot after\"></i>student after</span><span><i "
        "class=\"teacher\"></i>teacher"
        "</span><span><i class=\"interval\"></i>confidence interval</span></p></div>\n";
  }

  // A column stands in the table when one run has something for it.
  using Cell = std::function<std::string(const RunRecord&, const Headline&)>;
  const auto measured = [](std::optional<Measured> Headline::*member) {
    return [member](const RunRecord&, const Headline& headline) {
      const auto& value = headline.*member;
      return value ? MeasuredCell(*value) : std::string();
    };
  };
  const auto number = [](const std::optional<double>& value) {
    return value ? FormatNumber(*value) : std::string();
  };
  const std::vector<std::pair<std::string, Cell>> columns = {
      {"Teacher", measured(&Headline::teacher)},
      {"Student before", measured(&Headline::before)},
      {"Student after", measured(&Headline::after)},
      {"Gap closed",
       [](const RunRecord&, const Headline& headline) {
         const auto gap = GapClosed(headline);
         return gap ? FormatNumber(*gap, NumberStyle::kPercent, 2) : std::string();
       }},
      {"KL before",
       [&](const RunRecord&, const Headline& headline) { return number(headline.kl_before); }},
      {"KL after",
       [&](const RunRecord&, const Headline& headline) { return number(headline.kl_after); }},
      {"Steps",
       [&](const RunRecord& run, const Headline&) {
         const auto steps = Steps(run);
         return steps ? FormatNumber(*steps, NumberStyle::kPlain, 6) : std::string();
       }},
      {"Time",
       [](const RunRecord& run, const Headline&) {
         const auto seconds = Seconds(run);
         return seconds ? Duration(*seconds) : std::string();
       }},
      {"Tokens/s (median)",
       [&](const RunRecord& run, const Headline&) {
         return number(Median(run, "time/tokens_per_s"));
       }},
  };
  std::string head = "<th scope=\"col\">Run</th>";
  std::vector<std::string> rows(runs.size());
  for (const auto& [title, cell] : columns) {
    std::vector<std::string> cells;
    for (size_t i = 0; i < runs.size(); ++i) cells.push_back(cell(runs[i], headlines[i]));
    if (std::all_of(cells.begin(), cells.end(), [](const auto& text) { return text.empty(); })) {
      continue;
    }
    head += "<th scope=\"col\">" + title + "</th>";
    for (size_t i = 0; i < runs.size(); ++i) {
      const std::string content =
          cells[i].empty() ? "<span class=\"none\">not recorded</span>" : cells[i];
      rows[i] += "<td data-label=\"" + title + "\">" + content + "</td>";
    }
  }
  out += "<div class=\"card table\"><table><thead><tr>" + head + "</tr></thead><tbody>\n";
  for (size_t i = 0; i < runs.size(); ++i) {
    out += Concat("<tr class=\"run ", RunClass(i), "\" data-run=\"", i, "\"><th scope=\"row\">",
                  MarkSvg(i), EscapeHtml(runs[i].name), "</th>", rows[i], "</tr>\n");
  }
  out += "</tbody></table>";
  std::string unfinished;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (headlines[i].from_evaluations)
      unfinished += (unfinished.empty() ? "" : ", ") + runs[i].name;
  }
  if (!unfinished.empty()) {
    out += "<p class=\"remark\">Without summary.json (not ended): " + EscapeHtml(unfinished) +
           ". Before and after are its first and latest evaluation.</p>";
  }
  return out + "</div></section>\n";
}

}  // namespace taopd
