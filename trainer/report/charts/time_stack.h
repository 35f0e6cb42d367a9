// A stacked-area chart of where the time of each step went: a <figure> with an inline SVG.
#pragma once

#include <string>
#include <vector>

#include "trainer/report/run_record.h"

namespace taopd::report {

// A part of a step's time. The last part is the time that no other part covers.
struct TimePart {
  const char* metric;  // "time/forward_s"; nullptr for the rest
  const char* label;
};

// Returns the parts from the bottom of the chart to its top.
const std::vector<TimePart>& TimeParts();

// The page has such a figure for this many runs at most, to limit its length.
inline constexpr size_t kMaxTimeStacks = 4;

// Returns the figure of one run, which is number `index` on the page. Empty if the run did not
// record where its time went.
std::string RenderTimeStack(const RunRecord& run, size_t index);

}  // namespace taopd::report
