#include <absl/time/time.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "trainer/report/charts/run_style.h"
#include "trainer/report/charts/scale.h"
#include "trainer/report/page/html.h"
#include "trainer/report/page/page.h"
#include "trainer/report/page/run_results.h"

namespace taopd::report {
namespace {

// Always has one decimal, so that the numbers in a column line up. Values that are not shares (from
// a damaged summary) are shown unchanged.
std::string Percent(double share) {
  if (!(share >= 0 && share <= 1)) return FormatNumber(share, NumberStyle::kPercent);
  return Coordinate(100 * share) + "%";
}

// Returns "61.2%" and, in small type, "56.9-65.4%, n = 500".
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

// ---- The picture --------------------------------------------------------------------------------

double PositionPercent(double share) { return std::clamp(share, 0.0, 1.0) * 100; }

std::string Position(double share) { return Coordinate(PositionPercent(share)) + "%"; }

// Draws a bar from 0 to 100 % with the student before and after training, and the teacher as a
// tick.
std::string Dumbbell(const RunRecord& run, size_t index, const RunResults& results) {
  const bool gain = results.before && results.after;
  std::string label = run.name;
  std::string out = Concat("<div class=\"result run ", RunClass(index), "\" data-run=\"", index,
                           "\"><div class=\"who\">", RunSwatch(index), "<span>",
                           EscapeHtml(run.name), "</span></div><div class=\"figures\">");
  if (results.before) out += "<span>" + Percent(results.before->value) + "</span>";
  if (gain) out += "<span class=\"to\">&rarr;</span><b>" + Percent(results.after->value) + "</b>";
  if (results.before) label += ", before " + Percent(results.before->value);
  if (results.after) label += ", after " + Percent(results.after->value);
  if (results.teacher) {
    label += ", teacher " + Percent(results.teacher->value);
    out += "<small>teacher " + Percent(results.teacher->value) + "</small>";
  }
  out += "</div><div class=\"track\" role=\"img\" aria-label=\"" + EscapeHtml(label) + "\">";
  const auto interval = [&](const std::optional<Measured>& measured, const char* kind) {
    if (!measured || !measured->low || !measured->high) return;
    const double low = PositionPercent(*measured->low), high = PositionPercent(*measured->high);
    out += Concat("<i class=\"interval ", kind, "\" style=\"left:", Coordinate(low),
                  "%;width:", Coordinate(std::max(0.0, high - low)), "%\"></i>");
  };
  if (gain) {
    const double from = PositionPercent(results.before->value);
    const double to = PositionPercent(results.after->value);
    out += Concat("<i class=\"way\" style=\"left:", Coordinate(std::min(from, to)),
                  "%;width:", Coordinate(std::abs(to - from)), "%\"></i>");
  }
  interval(results.before, "before");
  interval(results.after, "after");
  if (results.teacher) {
    out += "<i class=\"teacher\" style=\"left:" + Position(results.teacher->value) + "\"></i>";
  }
  if (results.before) {
    out += "<i class=\"dot before\" style=\"left:" + Position(results.before->value) + "\"></i>";
  }
  if (results.after) {
    out += "<i class=\"dot after\" style=\"left:" + Position(results.after->value) + "\"></i>";
  }
  return out + "</div></div>\n";
}

// Renders one bar per run above a common axis and the key. Empty if no run has an accuracy.
std::string RenderBars(const std::vector<RunRecord>& runs, const std::vector<RunResults>& results) {
  const bool any_accuracy = std::any_of(results.begin(), results.end(), [](const RunResults& r) {
    return r.teacher || r.before || r.after;
  });
  if (!any_accuracy) return "";
  std::string out = "<div class=\"card results\">";
  for (size_t i = 0; i < runs.size(); ++i) out += Dumbbell(runs[i], i, results[i]);
  return out +
         "<div class=\"result scale\" aria-hidden=\"true\"><div class=\"result-axis\">"
         "<span>0%</span><span>25%</span><span>50%</span><span>75%</span><span>100%</span>"
         "</div></div>"
         "<p class=\"key\" aria-hidden=\"true\">"
         "<span><i class=\"dot before\"></i>student before</span>"
         "<span><i class=\"dot after\"></i>student after</span>"
         "<span><i class=\"teacher\"></i>teacher</span>"
         "<span><i class=\"interval\"></i>confidence interval</span></p></div>\n";
}

// ---- The table ----------------------------------------------------------------------------------

struct Column {
  std::string title;
  // Returns HTML, empty if the run has no value.
  std::function<std::string(const RunResults&)> cell;
};

Column MeasuredColumn(const std::string& title, std::optional<Measured> RunResults::*member) {
  return {title, [member](const RunResults& results) {
            const std::optional<Measured>& value = results.*member;
            return value ? MeasuredCell(*value) : std::string();
          }};
}

Column NumberColumn(const std::string& title, std::optional<double> RunResults::*member,
                    int digits = 3) {
  return {title, [member, digits](const RunResults& results) {
            const std::optional<double>& value = results.*member;
            return value ? FormatNumber(*value, NumberStyle::kPlain, digits) : std::string();
          }};
}

std::vector<Column> Columns() {
  return {
      MeasuredColumn("Teacher", &RunResults::teacher),
      MeasuredColumn("Student before", &RunResults::before),
      MeasuredColumn("Student after", &RunResults::after),
      {"Gap closed",
       [](const RunResults& results) {
         const auto gap = GapClosed(results);
         return gap ? FormatNumber(*gap, NumberStyle::kPercent, 2) : std::string();
       }},
      NumberColumn("KL before", &RunResults::kl_before),
      NumberColumn("KL after", &RunResults::kl_after),
      NumberColumn("Steps", &RunResults::steps, 6),
      {"Time",
       [](const RunResults& results) {
         return results.seconds ? Duration(*results.seconds) : std::string();
       }},
      NumberColumn("Tokens/s (median)", &RunResults::tokens_per_s),
  };
}

// Renders one row per run. Columns for which no run has a value are left out.
std::string RenderTable(const std::vector<RunRecord>& runs,
                        const std::vector<RunResults>& results) {
  std::string head = "<th scope=\"col\">Run</th>";
  std::vector<std::string> rows(runs.size());
  for (const Column& column : Columns()) {
    std::vector<std::string> cells;
    for (const RunResults& of_run : results) cells.push_back(column.cell(of_run));
    if (std::all_of(cells.begin(), cells.end(), [](const auto& text) { return text.empty(); })) {
      continue;
    }
    head += "<th scope=\"col\">" + column.title + "</th>";
    for (size_t i = 0; i < runs.size(); ++i) {
      const std::string content =
          cells[i].empty()
              ? "<span class=\"none\" role=\"img\" aria-label=\"not recorded\">&ndash;</span>"
              : cells[i];
      rows[i] += "<td data-label=\"" + column.title + "\">" + content + "</td>";
    }
  }
  std::string out = "<table><thead><tr>" + head + "</tr></thead><tbody>\n";
  for (size_t i = 0; i < runs.size(); ++i) {
    out += Concat("<tr class=\"run ", RunClass(i), "\" data-run=\"", i, "\"><th scope=\"row\">",
                  RunSwatch(i), EscapeHtml(runs[i].name), "</th>", rows[i], "</tr>\n");
  }
  return out + "</tbody></table>";
}

// Renders a note on where the numbers of runs without a summary come from.
std::string RenderOrigin(const std::vector<RunRecord>& runs,
                         const std::vector<RunResults>& results) {
  std::string ended, under_way;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!results[i].from_evaluations) continue;
    std::string& names = runs[i].has_ended ? ended : under_way;
    names += (names.empty() ? "" : ", ") + runs[i].name;
  }
  std::string out;
  if (!ended.empty()) {
    out +=
        "<p class=\"remark\">Before and after are the first and the last evaluation during "
        "training: " +
        EscapeHtml(ended) + ".</p>";
  }
  if (!under_way.empty()) {
    out += "<p class=\"remark\">Not ended: " + EscapeHtml(under_way) +
           ". Before and after are the first and the latest evaluation so far.</p>";
  }
  return out;
}

}  // namespace

std::string RenderHeadline(const std::vector<RunRecord>& runs) {
  std::vector<RunResults> results;
  for (const RunRecord& run : runs) results.push_back(ResultsOf(run));
  return "<section aria-labelledby=\"results\"><h2 id=\"results\">Results</h2>\n" +
         RenderBars(runs, results) + "<div class=\"card table\">" + RenderTable(runs, results) +
         RenderOrigin(runs, results) + "</div></section>\n";
}

}  // namespace taopd::report
