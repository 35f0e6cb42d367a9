// The lines of a chart and its scales, before anything is drawn.
#pragma once

#include <cstddef>
#include <vector>

#include "trainer/report/charts/chart.h"
#include "trainer/report/charts/scale.h"
#include "trainer/report/run_record.h"

namespace taopd::report {

struct Line {
  // Indices of the run and of the spec's quantity.
  size_t run = 0;
  size_t quantity = 0;
  Series raw;
  // The ends of the confidence interval at the steps of `raw`, NaN where there is none. Both are
  // empty if the run did not record them.
  Series low, high;
  // The window of the moving average; 1 means none.
  int window = 1;
};

// Returns one line for each run and recorded quantity, ordered by quantity.
std::vector<Line> CollectLines(const ChartSpec& spec, const std::vector<RunRecord>& runs);

// Returns the horizontal scale. All charts share it, so that charts above each other can be
// compared.
Scale StepScale(const std::vector<RunRecord>& runs);

// Returns the scale for all finite values of the lines and of their intervals.
Scale ValueScale(const std::vector<Line>& lines, const ScaleOptions& options);

}  // namespace taopd::report
