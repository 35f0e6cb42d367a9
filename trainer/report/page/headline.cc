// The headline of the page: the results as a picture and as a table. report.js sorts the table by
// any of its columns or of the metrics.
#include <absl/strings/numbers.h>
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

// A row of the table: a run, or the line of a group.
struct TableRow {
  const RunRecord* run;
  // Its index among the lines of the page, which sets its color.
  size_t line;
  RunResults results;
  // The run's seed, or how many the group has.
  std::string seed;
};

// Returns a share with one decimal, so that numbers under each other line up. Values that are not
// shares (from a damaged summary) are shown as they are.
std::string Percent(double share) {
  if (!(share >= 0 && share <= 1)) return FormatNumber(share, NumberStyle::kPercent);
  return Coordinate(100 * share) + "%";
}

// "61.2%" and, in small type, "56.9-65.4%, n = 500".
std::string MeasuredCell(const MeasuredShare& measured) {
  std::string detail;
  if (measured.low && measured.high && *measured.low < *measured.high) {
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

struct Column {
  std::string title;
  // Returns the number by which the column is sorted.
  std::function<std::optional<double>(const RunResults&)> value;
  // Returns the HTML of a value.
  std::function<std::string(const RunResults&)> cell;
};

Column MeasuredColumn(const std::string& title, std::optional<MeasuredShare> RunResults::*member) {
  return {title,
          [member](const RunResults& results) {
            const std::optional<MeasuredShare>& measured = results.*member;
            return measured ? std::optional<double>(measured->value) : std::nullopt;
          },
          [member](const RunResults& results) { return MeasuredCell(*(results.*member)); }};
}

Column NumberColumn(const std::string& title, std::optional<double> RunResults::*member,
                    int digits = 3) {
  return {title, [member](const RunResults& results) { return results.*member; },
          [member, digits](const RunResults& results) {
            return FormatNumber(*(results.*member), NumberStyle::kPlain, digits);
          }};
}

std::vector<Column> Columns() {
  return {
      MeasuredColumn("Teacher", &RunResults::teacher),
      MeasuredColumn("Student before", &RunResults::before),
      MeasuredColumn("Student after", &RunResults::after),
      {"Gap closed", GapClosed,
       [](const RunResults& results) {
         return FormatNumber(*GapClosed(results), NumberStyle::kPercent, 2);
       }},
      NumberColumn("KL before", &RunResults::kl_before),
      NumberColumn("KL after", &RunResults::kl_after),
      NumberColumn("Steps", &RunResults::steps, 6),
      {"Time", [](const RunResults& results) { return results.seconds; },
       [](const RunResults& results) { return Duration(*results.seconds); }},
      NumberColumn("Tokens/s (median)", &RunResults::tokens_per_s),
  };
}

constexpr char kNone[] =
    "<span class=\"none\" role=\"img\" aria-label=\"not recorded\">&ndash;</span>";

std::string HeadCell(const std::string& title) {
  return "<th scope=\"col\">" + EscapeHtml(title) + "</th>";
}

// Returns a cell. Without HTML it says that nothing was recorded.
std::string Cell(const std::string& title, const std::string& html, std::optional<double> value) {
  std::string out = "<td data-label=\"" + EscapeHtml(title) + "\"";
  if (value) out += Concat(" data-value=\"", *value, "\"");
  return out + ">" + (html.empty() ? kNone : html) + "</td>";
}

// Returns a cell of a text, which is sorted as a number if it is one.
std::string TextCell(const std::string& title, const std::string& text) {
  double number = 0;
  const bool is_number = absl::SimpleAtod(text, &number);
  return Cell(title, NameHtml(text), is_number ? std::optional<double>(number) : std::nullopt);
}

// Returns a <table>. The columns of `settings` (paths) come first, and then the column of seeds,
// unless its title is empty. A column of results is left out if no row has a value for it.
std::string RenderTable(const std::vector<TableRow>& rows, const std::vector<std::string>& settings,
                        const std::string& seed_title) {
  std::string head = HeadCell("Run");
  std::vector<std::string> cells(rows.size());
  for (const std::string& path : settings) {
    head += HeadCell(path);
    for (size_t i = 0; i < rows.size(); ++i) {
      cells[i] += TextCell(path, rows[i].run->SettingValue(path));
    }
  }
  if (!seed_title.empty()) {
    head += HeadCell(seed_title);
    for (size_t i = 0; i < rows.size(); ++i) cells[i] += TextCell(seed_title, rows[i].seed);
  }
  for (const Column& column : Columns()) {
    const auto recorded = [&](const TableRow& row) {
      return column.value(row.results).has_value();
    };
    if (std::ranges::none_of(rows, recorded)) continue;
    head += HeadCell(column.title);
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::optional<double> value = column.value(rows[i].results);
      cells[i] += Cell(column.title, value ? column.cell(rows[i].results) : "", value);
    }
  }
  std::string out = "<table><thead><tr>" + head + "</tr></thead><tbody>\n";
  for (size_t i = 0; i < rows.size(); ++i) {
    const TableRow& row = rows[i];
    out += Concat("<tr class=\"run ", RunClass(row.line), "\" data-run=\"", row.line,
                  "\"><th scope=\"row\">", RunSwatch(row.line), "<span>", NameHtml(row.run->name),
                  "</span></th>", cells[i], "</tr>\n");
  }
  return out + "</tbody></table>";
}

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
  const auto interval = [&](const std::optional<MeasuredShare>& measured, const char* kind) {
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
  const auto mark = [&out](const std::optional<MeasuredShare>& measured, const char* name) {
    if (!measured) return;
    out += Concat("<i class=\"", name, "\" style=\"left:", Position(measured->value), "\"></i>");
  };
  mark(results.teacher, "teacher");
  mark(results.before, "dot before");
  mark(results.after, "dot after");
  return out + "</div></div>\n";
}

// Returns a bar for each line, above a common axis and the key. Empty without any accuracy.
std::string RenderBars(const std::vector<RunRecord>& runs, const std::vector<RunResults>& results,
                       bool has_seeds) {
  const bool any_accuracy = std::ranges::any_of(
      results, [](const RunResults& r) { return r.teacher || r.before || r.after; });
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
         "<span><i class=\"interval\"></i>" +
         (has_seeds ? "lowest to highest seed" : "confidence interval") + "</span></p></div>\n";
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

std::string RenderHeadline(const std::vector<RunRecord>& runs, const Comparison& comparison) {
  const std::vector<RunRecord>& lines = comparison.lines;
  std::vector<TableRow> run_rows, line_rows;
  std::vector<std::vector<RunResults>> by_line(lines.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    const size_t line = comparison.line_of_run[i];
    run_rows.push_back({&runs[i], line, ResultsOf(runs[i]), runs[i].SettingValue("run.seed")});
    by_line[line].push_back(run_rows.back().results);
  }
  std::vector<RunResults> results;
  for (size_t line = 0; line < lines.size(); ++line) {
    results.push_back(MeanResults(by_line[line]));
    line_rows.push_back({&lines[line], line, results.back(), std::to_string(by_line[line].size())});
  }
  std::string out = "<section aria-labelledby=\"results\"><h2 id=\"results\">Results</h2>\n";
  if (comparison.HasSeeds()) {
    out +=
        "<p class=\"remark\">Runs whose settings are equal but for the seed are one line: their "
        "mean, with the range from the lowest to the highest.</p>";
  }
  out += RenderBars(lines, results, comparison.HasSeeds()) + "<div class=\"card table\">" +
         RenderTable(line_rows, comparison.settings, comparison.HasSeeds() ? "Seeds" : "");
  if (comparison.HasSeeds()) {
    out += "<details class=\"more\"><summary>Each run</summary>" +
           RenderTable(run_rows, comparison.settings, "Seed") + "</details>";
  }
  return out + RenderOrigin(lines, results) + "</div></section>\n";
}

}  // namespace taopd::report
