#include "trainer/report/charts/run_style.h"

#include <vector>

#include "common/base/status.h"
#include "trainer/report/page/html.h"

namespace taopd::report {

std::string RunClass(size_t run) { return Concat("r", run % kNumRunColors); }

std::string RunMark(size_t run, double x, double y) {
  struct Corner {
    double x, y;
  };
  static const std::vector<std::vector<Corner>> kMarks = {
      {{-3.4, -1.4},
       {-1.4, -3.4},
       {1.4, -3.4},
       {3.4, -1.4},
       {3.4, 1.4},
       {1.4, 3.4},
       {-1.4, 3.4},
       {-3.4, 1.4}},
      {{-3.2, -3.2}, {3.2, -3.2}, {3.2, 3.2}, {-3.2, 3.2}},
      {{0, -4.2}, {4, 3}, {-4, 3}},
      {{0, -4.4}, {4.4, 0}, {0, 4.4}, {-4.4, 0}},
      {{0, 4.2}, {4, -3}, {-4, -3}},
      {{-4, -1.2},
       {-1.2, -1.2},
       {-1.2, -4},
       {1.2, -4},
       {1.2, -1.2},
       {4, -1.2},
       {4, 1.2},
       {1.2, 1.2},
       {1.2, 4},
       {-1.2, 4},
       {-1.2, 1.2},
       {-4, 1.2}},
  };
  std::string path;
  for (const Corner& corner : kMarks[(run + run / kNumRunColors) % kMarks.size()]) {
    path += (path.empty() ? "M" : "L") + Coordinate(x + corner.x) + " " + Coordinate(y + corner.y);
  }
  return path + "Z";
}

std::string RunSwatch(size_t run) {
  return Concat("<svg class=\"swatch ", RunClass(run),
                "\" viewBox=\"0 0 24 12\" aria-hidden=\"true\"><path class=\"line\" d=\"M2 6H22\"/>"
                "<path class=\"mark\" d=\"",
                RunMark(run, 12, 6), "\"/></svg>");
}

}  // namespace taopd::report
