// Reduces a recorded series to the points that a chart of a few hundred pixels can show.
#pragma once

#include "trainer/report/run_record.h"

namespace taopd::report {

// Returns the centred moving average over `window` points (an odd number); only finite points
// count. Gaps stay gaps. With `geometric`, returns the geometric mean instead: only positive values
// count, and the others become gaps.
Series Smoothed(const Series& series, int window, bool geometric);

// Returns the smoothing window for a series of `num_points`: 1 (no smoothing) for short series, and
// more for longer ones.
int SmoothingWindow(size_t num_points);

// Returns at most about 2 * max_points points of the series, unchanged. Every bucket of steps keeps
// its lowest and its highest point, so that spikes stay, and a gap if it has one.
Series Decimated(const Series& series, int max_points);

// Returns at most about `max_points` points of the series, evenly spaced: the same ones of every
// series with these steps.
Series Thinned(const Series& series, int max_points);

}  // namespace taopd::report
