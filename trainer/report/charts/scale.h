// Axes: from values to a range, ticks and their labels.
#pragma once

#include <limits>
#include <string>
#include <vector>

namespace taopd {

enum class NumberStyle {
  kPlain,    // 0.0031, 2.3k
  kPercent,  // 0.375 is 37.5%
};

struct Tick {
  double value = 0;
  std::string label;
};

// REQUIRES of all: finite numbers.
struct Scale {
  double min = 0;
  double max = 1;  // more than min
  bool log = false;
  std::vector<Tick> ticks;  // within [min, max], rising

  // 0 at min, 1 at max; values outside of the range give numbers outside.
  double Fraction(double value) const;
};

struct ScaleOptions {
  NumberStyle style = NumberStyle::kPlain;
  bool allow_log = false;  // a log axis when the positive values span a factor of kLogRatio or more
  // The range never goes beyond these: 0 and 1 for shares.
  double floor = std::numeric_limits<double>::lowest();
  double ceiling = std::numeric_limits<double>::max();
  int num_ticks = 5;  // about
};
inline constexpr double kLogRatio = 30;

// `values` may be empty: 0 to 1 then. On a log axis values <= 0 have no place: the caller leaves
// them out and says so.
Scale MakeScale(const std::vector<double>& values, const ScaleOptions& options);
// Whole steps only, from `min` to `max` exactly.
Scale MakeStepScale(double min, double max, int num_ticks);

// At most `digits` significant digits, trailing zeros dropped: "0.0031", "1.2e-7", "12.3k",
// "37.5%".
std::string FormatNumber(double value, NumberStyle style = NumberStyle::kPlain, int digits = 3);

}  // namespace taopd
