// From a recorded series to its drawing: reduces the series to the points that a chart of a few
// hundred pixels can show, maps points to the drawing, and makes the SVG paths through them.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "trainer/report/charts/scale.h"
#include "trainer/report/run_record.h"

namespace taopd::report {

// Returns the centered moving average over `window` points (an odd number); only finite points
// count. Gaps stay gaps. With `geometric`, returns the geometric mean instead: only positive values
// count, and the others become gaps.
Series Smoothed(const Series& series, int window, bool geometric);

// Returns the smoothing window for a series of `num_points`: 1 (no smoothing) for short series, and
// more for longer ones.
int SmoothingWindow(size_t num_points);

// Returns at most about 2 * max_points points of the series, unchanged. Every bucket of steps keeps
// its lowest and its highest point, so that spikes stay, and a gap if it has one.
Series Decimated(const Series& series, int max_points);

// Returns at most about `max_points` points of the series, evenly spaced. Series with equal steps
// keep the same ones.
Series Thinned(const Series& series, int max_points);

// The drawing's own units. The page shows it at about 0.8 to 1.4 times this size.
inline constexpr double kPlotWidth = 440, kPlotHeight = 250;
inline constexpr double kPlotLeft = 48, kPlotRight = 428, kPlotTop = 12, kPlotBottom = 222;

// Immutable.
class Plot {
 public:
  Plot(Scale x, Scale y) : x_(std::move(x)), y_(std::move(y)) {}
  double X(int64_t step) const {
    return kPlotLeft + (kPlotRight - kPlotLeft) * x_.Fraction(static_cast<double>(step));
  }
  double Y(double value) const {
    return kPlotBottom - (kPlotBottom - kPlotTop) * y_.Fraction(value);
  }
  // Returns whether the value can be drawn: it is finite and, on a log scale, positive.
  bool Shows(double value) const { return std::isfinite(value) && (!y_.log || value > 0); }
  const Scale& x() const { return x_; }
  const Scale& y() const { return y_; }

 private:
  Scale x_, y_;
};

// Returns "M..L.." through the points. A gap starts a new piece. A piece of one point is a line of
// length zero, which its round caps turn into a dot.
std::string LinePath(const Plot& plot, const Series& series);

// Returns the outline of an interval: along the upper ends and back along the lower ones. All three
// series have the same steps. A step at which one of them cannot be drawn is a gap.
std::string BandPath(const Plot& plot, const Series& values, const Series& low, const Series& high);

// Returns the labels of the ticks of both axes.
std::string TickLabels(const Plot& plot);

}  // namespace taopd::report
