#include <algorithm>
#include <cmath>
#include <optional>

#include "trainer/report/charts/run_style.h"
#include "trainer/report/page/html.h"
#include "trainer/report/page/page.h"
#include "trainer/report/page/results_table.h"
#include "trainer/report/page/run_results.h"

namespace taopd::report {
namespace {

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

// A bar for each line, above a common axis and the key. Empty without any accuracy.
std::string RenderBars(const std::vector<RunRecord>& runs, const std::vector<RunResults>& results,
                       bool has_seeds) {
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
