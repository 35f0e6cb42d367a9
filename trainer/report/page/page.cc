#include "trainer/report/page/page.h"

#include <absl/strings/escaping.h>
#include <absl/time/time.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>

#include "common/io/sha256.h"
#include "trainer/report/charts/chart.h"
#include "trainer/report/charts/run_style.h"
#include "trainer/report/page/html.h"

namespace taopd::report {
namespace {

// Allows the page to run its own script and to load nothing.
std::string ContentSecurityPolicy() {
  const std::string digest = absl::HexStringToBytes(Sha256Hex(kReportJs));
  return Concat("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-",
                absl::Base64Escape(digest), "'; base-uri 'none'; form-action 'none'");
}

std::string Title(const std::vector<RunRecord>& runs) {
  if (runs.empty()) return "30-armed bandit";
  if (runs.size() == 1) return runs[0].name;
  return Concat(runs.size(), " runs");
}

std::string Utc(double seconds) {
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", absl::UnixEpoch() + absl::Seconds(seconds),
                          absl::UTCTimeZone());
}

std::string RenderHeader(const std::vector<RunRecord>& runs) {
  std::string out = "<header><p class=\"product\">TA-OPD training report</p><h1>" +
                    EscapeHtml(Title(runs)) + "</h1>";
  std::optional<double> first, last;
  for (const RunRecord& run : runs) {
    if (!run.first_time_s) continue;
    if (!first || *run.first_time_s < *first) first = run.first_time_s;
    if (!last || *run.last_time_s > *last) last = run.last_time_s;
  }
  if (first) out += "<p class=\"when\">" + Utc(*first) + " &ndash; " + Utc(*last) + "</p>";
  return out + "</header>\n";
}

// Returns the buttons that show and hide runs. Without the script they are only the color key.
std::string RenderLegend(const std::vector<RunRecord>& lines) {
  if (lines.size() < 2) return "";
  std::string out = "<nav class=\"legend\" aria-label=\"Runs\">";
  for (size_t i = 0; i < lines.size(); ++i) {
    out += Concat("<button type=\"button\" data-toggle=\"", i, "\" aria-pressed=\"true\">",
                  RunSwatch(i), "<span>", NameHtml(lines[i].name), "</span></button>");
  }
  return out + "</nav>\n";
}

std::string RenderNotes(const std::vector<RunRecord>& runs, const Comparison& comparison) {
  std::string out;
  for (const RunRecord& run : runs) {
    for (const std::string& note : run.notes) {
      out += "<li>" + EscapeHtml(run.name + ": " + note) + "</li>";
    }
  }
  for (const std::string& note : comparison.notes) out += "<li>" + EscapeHtml(note) + "</li>";
  return out.empty() ? "" : "<ul class=\"notes\" aria-label=\"Notes\">" + out + "</ul>\n";
}

std::string RenderCharts(const std::vector<RunRecord>& runs, nlohmann::ordered_json* data) {
  std::string out =
      "<section aria-labelledby=\"curves\"><h2 id=\"curves\">Curves</h2>"
      "<p class=\"remark\">The thin line of a noisy curve is what was recorded; the bold one is "
      "its moving average (geometric on log scales).</p><div class=\"charts\">\n";
  for (const ChartSpec& spec : ReportCharts(runs)) {
    if (spec.optional && !AnyRecorded(spec, runs)) continue;
    out += RenderChart(spec, runs, data);
  }
  for (size_t i = 0; i < std::min(runs.size(), kMaxTimeStacks); ++i) {
    out += RenderTimeStack(runs[i], i);
  }
  return out + "</div></section>\n";
}

std::string RenderConfigs(const std::vector<RunRecord>& runs, const Comparison& comparison) {
  std::string out;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].config_yaml.empty()) continue;
    const size_t line = comparison.line_of_run[i];
    out += Concat("<details class=\"card config run ", RunClass(line), "\" data-run=\"", line,
                  "\"><summary>", NameHtml(runs[i].name), "</summary><pre tabindex=\"0\">",
                  EscapeHtml(runs[i].config_yaml), "</pre></details>\n");
  }
  if (out.empty()) return "";
  return "<section aria-labelledby=\"configuration\"><h2 id=\"configuration\">Effective "
         "configuration</h2>\n" +
         out + "</section>\n";
}

// Returns the mean of the last values of a metric, because single values are noisy.
std::optional<double> RecentMean(const RunRecord& run, const std::string& metric) {
  constexpr int kNumLast = 10;
  const Series* series = run.Find(metric);
  if (series == nullptr) return std::nullopt;
  double sum = 0;
  int count = 0;
  for (auto point = series->rbegin(); point != series->rend() && count < kNumLast; ++point) {
    if (!std::isfinite(point->value)) continue;
    sum += point->value;
    ++count;
  }
  return sum / count;
}

// Returns the numbers that report.js shows and sorts the tables by. For each metric they are the
// recent mean of each run, and for each line the mean, the lowest and the highest of its runs. They
// are null where a run recorded none.
nlohmann::ordered_json MetricData(const std::vector<RunRecord>& runs,
                                  const Comparison& comparison) {
  nlohmann::ordered_json metrics = nlohmann::ordered_json::object();
  if (comparison.lines.size() < 2) return metrics;
  std::set<std::string> names;
  for (const RunRecord& run : runs) {
    for (const auto& [metric, series] : run.series) names.insert(metric);
  }
  for (const std::string& metric : names) {
    std::vector<std::vector<double>> by_line(comparison.lines.size());
    std::vector<bool> is_whole(comparison.lines.size(), true);
    nlohmann::ordered_json run_values = nlohmann::ordered_json::array(), line_values = run_values;
    for (size_t i = 0; i < runs.size(); ++i) {
      const std::optional<double> value = RecentMean(runs[i], metric);
      run_values.push_back(value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json());
      if (!value) is_whole[comparison.line_of_run[i]] = false;
      by_line[comparison.line_of_run[i]].push_back(value.value_or(0));
    }
    for (size_t line = 0; line < by_line.size(); ++line) {
      line_values.emplace_back();
      if (!is_whole[line]) continue;
      const std::vector<double>& values = by_line[line];
      const auto [low, high] = std::ranges::minmax_element(values);
      const double sum = std::accumulate(values.begin(), values.end(), 0.0);
      line_values.back() = {sum / static_cast<double>(values.size()), *low, *high};
    }
    metrics[metric] = {{"lines", line_values}, {"runs", run_values}};
  }
  return metrics;
}

}  // namespace

std::string RenderPage(const std::vector<RunRecord>& runs,
                       const std::vector<bandit::Result>& bandits) {
  const Comparison comparison = CompareRuns(runs);
  nlohmann::ordered_json data;
  data["runs"] = nlohmann::ordered_json::array();
  for (const RunRecord& line : comparison.lines) data["runs"].push_back(line.name);
  data["colors"] = kNumRunColors;
  data["metrics"] = MetricData(runs, comparison);
  data["charts"] = nlohmann::ordered_json::array();
  std::string body = RenderHeader(runs) + RenderLegend(comparison.lines) + "<main>\n" +
                     RenderNotes(runs, comparison);
  if (!runs.empty()) {
    body += RenderHeadline(runs, comparison) + RenderCharts(comparison.lines, &data["charts"]);
  }
  for (size_t i = 0; i < bandits.size(); ++i) {
    body += RenderBandit(bandits[i], Concat("bandit-", i + 1));
  }
  body += RenderSamples(runs, comparison) + RenderConfigs(runs, comparison) + "</main>\n";
  return Concat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"",
      ContentSecurityPolicy(),
      "\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>",
      EscapeHtml(Title(runs)), " - TA-OPD report</title>\n<style>\n", kReportCss,
      "</style>\n</head>\n<body>\n", body, "<script type=\"application/json\" id=\"data\">",
      ScriptJson(data), "</script>\n<script>", kReportJs, "</script>\n</body>\n</html>\n");
}

}  // namespace taopd::report
