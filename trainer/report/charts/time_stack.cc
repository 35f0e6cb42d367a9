#include <algorithm>
#include <cmath>
#include <map>

#include "trainer/report/charts/chart.h"
#include "trainer/report/charts/plot.h"
#include "trainer/report/charts/run_style.h"
#include "trainer/report/page/html.h"

namespace taopd::report {
namespace {

// If there are more steps than this, they are averaged in groups.
constexpr size_t kMaxGroups = 120;

// A part of a step's time. The last part is the time that no other part covers.
struct TimePart {
  const char* metric;  // "time/forward_s"; nullptr for the rest
  const char* label;
};

// Returns the parts from the bottom of the chart to its top.
const std::vector<TimePart>& TimeParts() {
  static const std::vector<TimePart> parts = {{"time/rollout_wait_s", "rollout"},
                                              {"time/teacher_wait_s", "teacher"},
                                              {"time/pack_s", "packing"},
                                              {"time/forward_s", "forward"},
                                              {"time/head_s", "head"},
                                              {"time/backward_s", "backward"},
                                              {"time/optimizer_s", "optimizer"},
                                              {"time/save_s", "saving"},
                                              {"time/evaluation_s", "evaluation"},
                                              {nullptr, "other"}};
  return parts;
}

// The parts of some consecutive steps, in mean seconds per step.
struct Group {
  int64_t first_step = 0;
  std::vector<double> seconds;  // indexed by part
  size_t num_steps = 0;
};

std::map<int64_t, double> ByStep(const Series* series) {
  std::map<int64_t, double> values;
  for (size_t i = 0; series != nullptr && i < series->size(); ++i) {
    if (std::isfinite((*series)[i].value)) values[(*series)[i].step] = (*series)[i].value;
  }
  return values;
}

std::vector<Group> CollectGroups(const RunRecord& run) {
  const std::vector<TimePart>& parts = TimeParts();
  const std::map<int64_t, double> whole = ByStep(run.Find("time/step_s"));
  std::vector<std::map<int64_t, double>> values_of_parts;
  for (const TimePart& part : parts) {
    values_of_parts.push_back(part.metric != nullptr ? ByStep(run.Find(part.metric))
                                                     : std::map<int64_t, double>());
  }
  std::vector<Group> groups;
  if (ByStep(run.Find("time/forward_s")).empty()) return groups;
  const size_t group_size = (whole.size() + kMaxGroups - 1) / kMaxGroups;
  for (const auto& [step, step_s] : whole) {
    if (groups.empty() || groups.back().num_steps == group_size) {
      groups.push_back({step, std::vector<double>(parts.size(), 0.0), 0});
    }
    ++groups.back().num_steps;
    std::vector<double>& seconds = groups.back().seconds;
    double known = 0;  // within the step, which does not include saving and evaluating
    for (size_t p = 0; p < parts.size(); ++p) {
      const auto found = values_of_parts[p].find(step);
      const double value = found == values_of_parts[p].end() ? 0 : std::max(0.0, found->second);
      seconds[p] += value;
      const std::string metric = parts[p].metric != nullptr ? parts[p].metric : "";
      if (metric != "time/save_s" && metric != "time/evaluation_s") known += value;
    }
    seconds.back() += std::max(0.0, step_s - known);
  }
  for (Group& group : groups) {
    for (double& seconds : group.seconds) seconds /= static_cast<double>(group.num_steps);
  }
  return groups;
}

// Returns the area between the sums of the parts below `part` and the sums that include it.
std::string Area(const Plot& plot, const std::vector<Group>& groups, size_t part) {
  std::string forth, back;
  for (const Group& group : groups) {
    double below = 0;
    for (size_t p = 0; p < part; ++p) below += group.seconds[p];
    const std::string x = Coordinate(plot.X(group.first_step));
    forth += Concat(forth.empty() ? "M" : "L", x, " ", Coordinate(plot.Y(below)));
    back = Concat("L", x, " ", Coordinate(plot.Y(below + group.seconds[part])), back);
  }
  return forth + back + "Z";
}

}  // namespace

std::string RenderTimeStack(const RunRecord& run, size_t index) {
  const std::vector<Group> groups = CollectGroups(run);
  if (groups.empty()) return "";
  double highest = 0;
  std::vector<double> totals(TimeParts().size(), 0.0);
  for (const Group& group : groups) {
    double sum = 0;
    for (size_t p = 0; p < totals.size(); ++p) {
      sum += group.seconds[p];
      totals[p] += group.seconds[p] * static_cast<double>(group.num_steps);
    }
    highest = std::max(highest, sum);
  }
  double whole = 0;
  for (const double total : totals) whole += total;
  if (whole <= 0) return "";
  const ScaleOptions from_zero = {.floor = 0};
  const auto first = static_cast<double>(groups.front().first_step);
  const auto last = std::max(first + 1, static_cast<double>(groups.back().first_step));
  const Plot plot(MakeStepScale(first, last), MakeScale({0, highest}, from_zero));
  const std::string id = Concat("time-stack-", index);
  std::string areas, key = "<p class=\"key\">", words;
  for (size_t p = 0; p < totals.size(); ++p) {
    if (totals[p] <= 0) continue;
    const std::string share = FormatNumber(totals[p] / whole, NumberStyle::kPercent);
    areas += Concat("<path class=\"stack stack-", p, "\" d=\"", Area(plot, groups, p), "\"><title>",
                    TimeParts()[p].label, " ", share, "</title></path>");
    key += Concat("<span><svg viewBox=\"0 0 12 12\"><path class=\"stack stack-", p,
                  "\" d=\"M0 0H12V12H0Z\"/></svg>", TimeParts()[p].label, " ", share, "</span>");
    words += Concat(words.empty() ? "" : ", ", TimeParts()[p].label, " ", share);
  }
  return Concat("<figure class=\"chart run ", RunClass(index), "\" data-run=\"", index, "\" id=\"",
                id, "\"><figcaption><h3>Time of a step: ", EscapeHtml(run.name),
                "</h3><p>Seconds, by what they were spent on.</p>", key,
                "</p></figcaption><div class=\"plot\"><svg viewBox=\"0 0 ", kPlotWidth, " ",
                kPlotHeight, "\" role=\"img\" aria-labelledby=\"", id, "-desc\"><desc id=\"", id,
                "-desc\">", words, "</desc>", areas,
                "<g class=\"ticks\">" + TickLabels(plot) + "</g>", "</svg></div></figure>\n");
}

}  // namespace taopd::report
