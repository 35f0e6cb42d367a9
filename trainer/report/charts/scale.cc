#include "trainer/report/charts/scale.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/status.h"

namespace taopd::report {
namespace {

// The approximate number of ticks of an axis.
constexpr int kNumTicks = 5;

// Returns the 1, 2 or 5 times a power of ten that is nearest to `raw`.
double NiceStep(double raw) {
  const double power = std::pow(10, std::floor(std::log10(raw)));
  if (raw < 1.5 * power) return power;
  if (raw < 3.5 * power) return 2 * power;
  if (raw < 7.5 * power) return 5 * power;
  return 10 * power;
}

std::string Trimmed(std::string text) {
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string Fixed(double value, int decimals) { return absl::StrFormat("%.*f", decimals, value); }

// "1.2e-7": neither the mantissa nor the exponent is padded with zeros.
std::string Scientific(double value, int digits) {
  const std::string whole = absl::StrFormat("%.*e", digits - 1, value);
  const size_t e = whole.find('e');
  return Concat(Trimmed(whole.substr(0, e)), "e", std::stoi(whole.substr(e + 1)));
}

// Returns the number of significant digits that distinguish `value` from value + step.
int DigitsFor(double value, double step) {
  if (value == 0) return 1;
  const double places =
      std::floor(std::log10(std::abs(value)) + 1e-9) - std::floor(std::log10(step) + 1e-9);
  return std::clamp(static_cast<int>(places) + 1, 1, 15);
}

void AddLinearTicks(double step, NumberStyle style, Scale* scale) {
  const double first = std::ceil(scale->min / step - 1e-9);
  for (int i = 0; i < 50; ++i) {
    double value = (first + i) * step;
    if (!std::isfinite(value) || value > scale->max + step * 1e-9) break;
    // Avoid "-0".
    if (std::abs(value) < step * 1e-9) value = 0;
    scale->ticks.push_back({value, FormatNumber(value, style, DigitsFor(value, step))});
  }
}

void AddLogTicks(const ScaleOptions& options, Scale* scale) {
  const int low = static_cast<int>(std::floor(std::log10(scale->min) + 1e-9));
  const int high = static_cast<int>(std::ceil(std::log10(scale->max) - 1e-9));
  const double decades = std::log10(scale->max) - std::log10(scale->min);
  const int every = std::max(1, static_cast<int>(std::ceil(decades / (kNumTicks + 2))));
  std::vector<double> factors = {1};
  // An axis of few decades has space for ticks within each.
  if (scale->max / scale->min < 200) factors = {1, 2, 5};
  for (int decade = low; decade <= high; decade += every) {
    for (const double factor : factors) {
      const double value = factor * std::pow(10, decade);
      const bool inside = value >= scale->min * (1 - 1e-9) && value <= scale->max * (1 + 1e-9);
      if (!inside || !std::isfinite(value)) continue;
      scale->ticks.push_back({value, FormatNumber(value, options.style, 1)});
    }
  }
}

Scale LogScale(double low, double high, const ScaleOptions& options) {
  Scale scale;
  scale.log = true;
  const double margin = std::exp((std::log(high) - std::log(low)) * 0.04);
  scale.min = std::max(low / margin, 1e-307);
  scale.max = std::min(high * margin, options.ceiling);
  AddLogTicks(options, &scale);
  return scale;
}

}  // namespace

double Scale::Fraction(double value) const {
  if (log) return (std::log(value) - std::log(min)) / (std::log(max) - std::log(min));
  // The halves avoid an overflow in the difference of two large numbers.
  return (value / 2 - min / 2) / (max / 2 - min / 2);
}

Scale MakeScale(const std::vector<double>& values, const ScaleOptions& options) {
  Scale scale;
  double low = 0, high = 1;
  if (!values.empty()) {
    low = *std::ranges::min_element(values);
    high = *std::ranges::max_element(values);
  }
  if (options.allow_log && high > 0) {
    double low_positive = high;
    size_t num_positive = 0;
    for (const double value : values) {
      if (value > 0) {
        low_positive = std::min(low_positive, value);
        ++num_positive;
      }
    }
    // A loss that crosses zero gets a linear axis; a tail that is occasionally zero gets a log
    // axis.
    const bool mostly_positive = num_positive * 10 >= values.size() * 9 && low >= 0;
    if (mostly_positive && high / kLogRatio >= low_positive && low_positive > 1e-300) {
      return LogScale(low_positive, high, options);
    }
  }
  // Include zero if it is near.
  if (low > 0 && low < 0.5 * high) low = 0;
  if (high < 0 && high > 0.5 * low) high = 0;
  // All values are equal, at least to within rounding.
  if (high / 2 - low / 2 <= std::max(std::abs(low), std::abs(high)) * 1e-9) {
    const double margin = low == 0 ? 1 : std::abs(low) * 0.1;
    low = low >= 0 ? std::max(0.0, low - margin) : low - margin;
    high += margin;
  }
  const double half_span = high / 2 - low / 2;
  const double margin = 0.04 * half_span * 2;
  if (low != 0) low = std::max(low - margin, options.floor);
  if (high != 0) high = std::min(high + margin, options.ceiling);
  scale.min = low;
  scale.max = high;
  AddLinearTicks(NiceStep((high / 2 - low / 2) / kNumTicks * 2), options.style, &scale);
  return scale;
}

Scale MakeStepScale(double min, double max) {
  Scale scale;
  scale.min = min;
  scale.max = max > min ? max : min + 1;
  const double step = std::max(1.0, NiceStep((scale.max - scale.min) / kNumTicks));
  AddLinearTicks(step, NumberStyle::kPlain, &scale);
  return scale;
}

std::string FormatNumber(double value, NumberStyle style, int digits) {
  if (std::isnan(value)) return "not a number";
  if (std::isinf(value)) return value > 0 ? "infinite" : "minus infinite";
  if (style == NumberStyle::kPercent) {
    const double percent = 100 * value;
    const double size = std::abs(percent);
    if (size >= 1e6 || (size != 0 && size < 1e-3)) return Scientific(percent, digits) + "%";
    const int whole_digits = size == 0 ? 1 : static_cast<int>(std::floor(std::log10(size))) + 1;
    return Trimmed(Fixed(percent, std::max(0, digits - whole_digits))) + "%";
  }
  const double size = std::abs(value);
  if (size == 0) return "0";
  if (size < 1e-3 * (1 - 1e-9) || size >= 1e12) return Scientific(value, digits);
  double unit = 1;
  const char* suffix = "";
  for (const auto& [candidate, name] : {std::pair{1e9, "G"}, {1e6, "M"}, {1e4, "k"}}) {
    if (size >= candidate * (1 - 1e-9)) {
      unit = candidate == 1e4 ? 1e3 : candidate;
      suffix = name;
      break;
    }
  }
  const int exponent = static_cast<int>(std::floor(std::log10(size / unit) + 1e-9));
  return Trimmed(Fixed(value / unit, std::max(0, digits - 1 - exponent))) + suffix;
}

}  // namespace taopd::report
