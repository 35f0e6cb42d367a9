// The look of a run, the same in every chart of the page. Runs differ by color and by the mark at
// the end of their line, so that they can be told apart without colors.
#pragma once

#include <cstddef>
#include <string>

namespace taopd::report {

// The first twelve runs have colors of their own. Runs that share a color differ in their marks.
// report.css defines the colors, one per class, for light and dark pages.
inline constexpr int kNumRunColors = 12;

// Returns the style class that sets a run's color.
std::string RunClass(size_t run);

// Returns the run's mark, a closed SVG path around (x, y).
std::string RunMark(size_t run, double x, double y);

// Returns a short line with the run's mark, as an inline SVG.
std::string RunSwatch(size_t run);

}  // namespace taopd::report
