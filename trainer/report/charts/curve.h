// From a recorded series to what a chart of a few hundred pixels can show.
#pragma once

#include "trainer/report/run_record.h"

namespace taopd {

// Moving average over `window` points (odd), centred, over the finite ones; gaps stay gaps. With
// `geometric` the average of the logarithms, over the positive ones; the others become gaps.
Series Smoothed(const Series& series, int window, bool geometric);
// The window for a series: 1 (none) for short ones, growing with the length.
int SmoothingWindow(size_t num_points);

// At most about 2 * max_points points: of every bucket of steps the lowest and the highest, so that
// spikes stay, and a gap where it has one. The points are points of the series, unchanged.
Series Decimated(const Series& series, int max_points);

}  // namespace taopd
