// From a recorded series to what a chart of a few hundred pixels can show.
#pragma once

#include "trainer/report/run_record.h"

namespace taopd::report {

// Returns the centred moving average over `window` points (odd), of which only the finite ones
// count. Gaps stay gaps. With `geometric` it is the exponential of the logarithms' average: only
// positive values count, and the others become gaps.
Series Smoothed(const Series& series, int window, bool geometric);

// Returns the window for a series: 1 (no smoothing) for short ones, growing with the length.
int SmoothingWindow(size_t num_points);

// Returns at most about 2 * max_points points of the series, unchanged: the lowest and the highest
// of every bucket of steps, so that spikes stay, and a gap where the bucket has one.
Series Decimated(const Series& series, int max_points);

}  // namespace taopd::report
