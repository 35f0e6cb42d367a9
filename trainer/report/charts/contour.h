// Contours of values on an evenly spaced grid of nodes, as SVG paths.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace taopd::report {

// The grid's place in the drawing. The first column is at `left`, the first row at `bottom`.
struct ContourFrame {
  double left = 0, right = 1, top = 0, bottom = 1;
};

// [row][column]; row 0 is at the bottom.
using Grid = std::vector<std::vector<double>>;

// Returns the numbers 1, 2 and 5 times a power of ten inside the range of the values, in ascending
// order. If there are more than kMaxLevels, the highest are left out, because optimizers end at low
// values.
inline constexpr size_t kMaxLevels = 12;
std::vector<double> ContourLevels(const Grid& values);

// Returns the area above each level, in whole cells. The areas are painted over each other and so
// get darker with height.
std::vector<std::string> ContourBands(const Grid& values, const std::vector<double>& levels,
                                      const ContourFrame& frame);

// Returns the line at one level (marching squares, linear between nodes).
std::string ContourLine(const Grid& values, double level, const ContourFrame& frame);

// Returns a five-pointed star around (x, y).
std::string StarPath(double x, double y, double radius);

}  // namespace taopd::report
