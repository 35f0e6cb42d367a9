// Contours of values on an evenly spaced grid of nodes, as SVG paths. values[row][column]; row 0 is
// at the bottom.
#pragma once

#include <string>
#include <vector>

namespace taopd {

// Where the grid lies in the drawing: the first column at left, the first row at bottom.
struct ContourFrame {
  double left = 0, right = 1, top = 0, bottom = 1;
};

using Grid = std::vector<std::vector<double>>;

// Those of 1, 2, 5 times powers of ten that lie inside of the values' range, at most kMaxLevels:
// the highest are left out first, because the low ground is where optimizers end.
inline constexpr size_t kMaxLevels = 12;
std::vector<double> ContourLevels(const Grid& values);

// For each level the area above it, in cells; painted over each other they get darker with height.
std::vector<std::string> ContourBands(const Grid& values, const std::vector<double>& levels,
                                      const ContourFrame& frame);

// The line at one level (marching squares, linear between nodes).
std::string ContourLine(const Grid& values, double level, const ContourFrame& frame);

// A five-pointed star around (x, y).
std::string StarPath(double x, double y, double radius);

}  // namespace taopd
