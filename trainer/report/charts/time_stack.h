// Where the time of each step went, as areas on top of each other: a <figure> with an inline SVG.
#pragma once

#include <string>
#include <vector>

#include "trainer/report/run_record.h"

namespace taopd::report {

// A part of a step's time. The last part is what the others leave of it.
struct TimePart {
  const char* metric;  // "time/forward_s"; nullptr for the rest
  const char* label;
};

// The parts from the bottom of the chart to its top.
const std::vector<TimePart>& TimeParts();

// Runs for which a page has such a figure; more would only make it long.
inline constexpr size_t kMaxTimeStacks = 4;

// Returns the figure of one run. `index` is its place among the runs of the page. Empty if the run
// did not record where its time went.
std::string RenderTimeStack(const RunRecord& run, size_t index);

}  // namespace taopd::report
