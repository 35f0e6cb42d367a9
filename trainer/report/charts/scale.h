// Axes: the range, the ticks and the labels for a set of values. All arguments must be finite,
// except that of FormatNumber.
#pragma once

#include <limits>
#include <string>
#include <vector>

namespace taopd::report {

enum class NumberStyle {
  // 0.0031, 2.3k
  kPlain,
  // 37.5% for 0.375
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

  // Returns 0 at min and 1 at max. Values outside the range map outside [0, 1].
  double Fraction(double value) const;
};

struct ScaleOptions {
  NumberStyle style = NumberStyle::kPlain;
  // Makes a log axis if the positive values span a factor of kLogRatio or more.
  bool allow_log = false;
  // Limits of the range, for example 0 and 1 for shares.
  double floor = std::numeric_limits<double>::lowest();
  double ceiling = std::numeric_limits<double>::max();
};
inline constexpr double kLogRatio = 30;

// Returns the scale for `values`; it spans 0 to 1 if there are none. Values <= 0 cannot be drawn on
// a log axis: the caller must leave them out and say so.
Scale MakeScale(const std::vector<double>& values, const ScaleOptions& options);

// Returns a scale of whole steps that spans exactly `min` to `max`.
Scale MakeStepScale(double min, double max);

// Returns the value with at most `digits` significant digits and no trailing zeros: "0.0031",
// "1.2e-7", "12.3k", "37.5%".
std::string FormatNumber(double value, NumberStyle style = NumberStyle::kPlain, int digits = 3);

}  // namespace taopd::report
