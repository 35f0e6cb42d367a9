// One chart: a <figure> with an inline SVG that is complete without any script, and the values that
// the script needs to show what is under the pointer.
//
// Runs differ by colour and by the mark at the end of their line (so that colours are not needed to
// tell them apart); two quantities of one chart differ by solid and dashed lines.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "trainer/report/charts/scale.h"
#include "trainer/report/run_record.h"

namespace taopd {

struct ChartQuantity {
  std::string metric;     // "policy/student_tail"
  std::string label;      // "student"; empty when the chart has one quantity only
  std::string low, high;  // metrics of its confidence interval; empty: none
};

struct ChartSpec {
  std::string id;  // of the element: letters and '-'
  std::string title;
  std::string hint;  // one sentence: what is shown, in which unit
  std::vector<ChartQuantity> quantities;
  ScaleOptions scale;
  enum class Style {
    kNoisy,   // every step differs: thin, and bold its moving average
    kExact,   // a line through the values
    kPoints,  // few measured points (evaluations): the line and a mark at each
  };
  Style style = Style::kNoisy;
  bool optional = false;  // left out of the page when no run recorded it
};

// All charts of the page, in order. Those of loss terms depend on what the runs recorded.
std::vector<ChartSpec> ReportCharts(const std::vector<RunRecord>& runs);

bool AnyRecorded(const ChartSpec& spec, const std::vector<RunRecord>& runs);

// Appends the chart's values to `data`, an array. A chart that no run recorded says so.
std::string RenderChart(const ChartSpec& spec, const std::vector<RunRecord>& runs,
                        nlohmann::ordered_json* data);

inline constexpr int kNumRunColors = 6;
// The style class that sets a run's colour.
std::string RunClass(size_t run);
// The run's mark, a closed SVG path around (x, y).
std::string RunMark(size_t run, double x, double y);

}  // namespace taopd
