// Contours of values on an evenly spaced grid of nodes, as SVG paths.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace taopd::report {

// Where the grid lies in the drawing. The first column is at `left`, the first row at `bottom`.
struct ContourFrame {
  double left = 0, right = 1, top = 0, bottom = 1;
};

// [row][column]; row 0 is at the bottom.
using Grid = std::vector<std::vector<double>>;

// Returns those of 1, 2 and 5 times powers of ten that lie inside of the values' range, in
// ascending order and at most kMaxLevels. The highest are left out first, because optimizers end on
// low ground.
inline constexpr size_t kMaxLevels = 12;
std::vector<double> ContourLevels(const Grid& values);

// Returns for each level the area above it, in whole cells. Painted over each other, the areas get
// darker with height.
std::vector<std::string> ContourBands(const Grid& values, const std::vector<double>& levels,
                                      const ContourFrame& frame);

// Returns the line at one level (marching squares, linear between nodes).
std::string ContourLine(const Grid& values, double level, const ContourFrame& frame);

// Returns a five-pointed star around (x, y).
std::string StarPath(double x, double y, double radius);

}  // namespace taopd::report
