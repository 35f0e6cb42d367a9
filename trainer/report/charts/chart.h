// The charts of the page. Each is a <figure> with an inline SVG that is complete without any
// script. A chart of metrics also has the values that the script shows under the pointer.
//
// The interval of a metric (run_record.h) is a band around its line.
//
// Runs differ by color and mark (run_style.h). Two quantities of one chart differ by solid and
// dashed lines.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "trainer/report/charts/scale.h"
#include "trainer/report/run_record.h"

namespace taopd::report {

struct ChartQuantity {
  // For example "policy/student_tail".
  std::string metric;
  // For example "student". Empty if the chart has only one quantity.
  std::string label = {};
};

struct ChartSpec {
  // The element's id: letters and '-', unique in the page.
  std::string id;
  std::string title;
  // One sentence that names the quantity and its unit.
  std::string hint;
  std::vector<ChartQuantity> quantities;
  ScaleOptions scale = {};
  enum class Style {
    // For values that differ at every step: a thin line through the values and a bold line for
    // their moving average.
    kNoisy,
    // A line through the values.
    kExact,
    // For a few measured points (evaluations): a line with a mark at each point.
    kPoints,
  };
  Style style = Style::kNoisy;
  // The page leaves the chart out if no run recorded it.
  bool optional = false;
};

// Returns all charts of the page, in order. The charts of loss terms depend on what the runs
// recorded.
std::vector<ChartSpec> ReportCharts(const std::vector<RunRecord>& runs);

bool AnyRecorded(const ChartSpec& spec, const std::vector<RunRecord>& runs);

// Returns the <figure>, and appends the chart's values to `data`, an array. A chart that no run
// recorded says so and appends nothing.
std::string RenderChart(const ChartSpec& spec, const std::vector<RunRecord>& runs,
                        nlohmann::ordered_json* data);

// The page has the time stacks of this many runs at most, to limit its length.
inline constexpr size_t kMaxTimeStacks = 4;

// Returns a stacked-area chart of where the time of each step went, for one run, which is number
// `index` on the page. Empty if the run did not record it.
std::string RenderTimeStack(const RunRecord& run, size_t index);

}  // namespace taopd::report
