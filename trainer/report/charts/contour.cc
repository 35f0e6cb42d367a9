#include "trainer/report/charts/contour.h"

#include <algorithm>
#include <cmath>

#include "trainer/report/page/html.h"

namespace taopd::report {
namespace {

struct At {
  double x = 0, y = 0;
};

// Maps grid coordinates to the drawing.
class Mapping {
 public:
  Mapping(const Grid& values, const ContourFrame& frame)
      : frame_(frame),
        columns_(static_cast<double>(values[0].size()) - 1),
        rows_(static_cast<double>(values.size()) - 1) {}
  double X(double column) const {
    return frame_.left + (frame_.right - frame_.left) * column / columns_;
  }
  double Y(double row) const { return frame_.bottom - (frame_.bottom - frame_.top) * row / rows_; }

 private:
  ContourFrame frame_;
  double columns_, rows_;
};

}  // namespace

std::vector<double> ContourLevels(const Grid& values) {
  double low = values[0][0], high = values[0][0];
  for (const auto& row : values) {
    low = std::min(low, *std::ranges::min_element(row));
    high = std::max(high, *std::ranges::max_element(row));
  }
  std::vector<double> levels;
  for (int power = -6; power <= 6; ++power) {
    for (double digit : {1.0, 2.0, 5.0}) {
      const double level = digit * std::pow(10.0, power);
      if (level > low && level < high && levels.size() < kMaxLevels) levels.push_back(level);
    }
  }
  return levels;
}

std::vector<std::string> ContourBands(const Grid& values, const std::vector<double>& levels,
                                      const ContourFrame& frame) {
  const Mapping mapping(values, frame);
  std::vector<std::string> bands;
  for (double level : levels) {
    std::string path;
    for (size_t row = 0; row + 1 < values.size(); ++row) {
      const auto above = [&](size_t column) {
        return values[row][column] + values[row][column + 1] + values[row + 1][column] +
                   values[row + 1][column + 1] >
               4 * level;
      };
      const size_t columns = values[row].size() - 1;
      for (size_t start = 0; start < columns;) {
        size_t end = start;
        while (end < columns && above(end)) ++end;
        if (end > start) {
          const double x0 = mapping.X(static_cast<double>(start));
          const double x1 = mapping.X(static_cast<double>(end));
          const double y0 = mapping.Y(static_cast<double>(row));
          const double y1 = mapping.Y(static_cast<double>(row + 1));
          path += "M" + Coordinate(x0) + " " + Coordinate(y0) + "H" + Coordinate(x1) + "V" +
                  Coordinate(y1) + "H" + Coordinate(x0) + "Z";
        }
        start = std::max(end, start + 1);
      }
    }
    bands.push_back(path);
  }
  return bands;
}

std::string ContourLine(const Grid& values, double level, const ContourFrame& frame) {
  const Mapping mapping(values, frame);
  std::string path;
  for (size_t row = 0; row + 1 < values.size(); ++row) {
    for (size_t column = 0; column + 1 < values[row].size(); ++column) {
      const double r = static_cast<double>(row), c = static_cast<double>(column);
      // The corners in order around the cell; the level crosses the edges between them.
      const At corners[] = {{c, r}, {c + 1, r}, {c + 1, r + 1}, {c, r + 1}};
      const double heights[] = {values[row][column], values[row][column + 1],
                                values[row + 1][column + 1], values[row + 1][column]};
      At crossings[4];
      int num = 0;
      for (int edge = 0; edge < 4; ++edge) {
        const int next = (edge + 1) % 4;
        if ((heights[edge] > level) == (heights[next] > level)) continue;
        const double t = (level - heights[edge]) / (heights[next] - heights[edge]);
        crossings[num++] = {corners[edge].x + t * (corners[next].x - corners[edge].x),
                            corners[edge].y + t * (corners[next].y - corners[edge].y)};
      }
      for (int i = 0; i + 1 < num; i += 2) {
        path += "M" + Coordinate(mapping.X(crossings[i].x)) + " " +
                Coordinate(mapping.Y(crossings[i].y)) + "L" +
                Coordinate(mapping.X(crossings[i + 1].x)) + " " +
                Coordinate(mapping.Y(crossings[i + 1].y));
      }
    }
  }
  return path;
}

std::string StarPath(double x, double y, double radius) {
  constexpr double kPi = 3.14159265358979323846;
  std::string path;
  for (int i = 0; i < 10; ++i) {
    const double r = i % 2 == 0 ? radius : 0.42 * radius;
    const double angle = kPi * i / 5;
    path += (i == 0 ? "M" : "L") + Coordinate(x + r * std::sin(angle)) + " " +
            Coordinate(y - r * std::cos(angle));
  }
  return path + "Z";
}

}  // namespace taopd::report
