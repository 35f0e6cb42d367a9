// Axes: from values to a range, ticks and their labels. All numbers that come in are finite, except
// those of FormatNumber.
#pragma once

#include <limits>
#include <string>
#include <vector>

namespace taopd::report {

enum class NumberStyle {
  // 0.0031, 2.3k
  kPlain,
  // 0.375 is 37.5%.
  kPercent,
};

struct Tick {
  double value = 0;
  std::string label;
};

struct Scale {
  double min = 0;
  // Greater than min.
  double max = 1;
  bool log = false;
  // Within [min, max], in ascending order.
  std::vector<Tick> ticks;

  // Returns 0 at min and 1 at max. Values outside of the range give numbers outside of [0, 1].
  double Fraction(double value) const;
};

struct ScaleOptions {
  NumberStyle style = NumberStyle::kPlain;
  // Makes a log axis if the positive values span a factor of kLogRatio or more.
  bool allow_log = false;
  // The range never goes beyond these: 0 and 1 for shares.
  double floor = std::numeric_limits<double>::lowest();
  double ceiling = std::numeric_limits<double>::max();
  // Approximate.
  int num_ticks = 5;
};
inline constexpr double kLogRatio = 30;

// Returns the scale for `values`, from 0 to 1 if there are none. On a log axis values <= 0 have no
// place: the caller leaves them out and says so.
Scale MakeScale(const std::vector<double>& values, const ScaleOptions& options);

// Returns a scale of whole steps, from `min` to `max` exactly.
Scale MakeStepScale(double min, double max, int num_ticks);

// Returns at most `digits` significant digits without trailing zeros: "0.0031", "1.2e-7", "12.3k",
// "37.5%".
std::string FormatNumber(double value, NumberStyle style = NumberStyle::kPlain, int digits = 3);

}  // namespace taopd::report
