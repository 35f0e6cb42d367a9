#include "trainer/cli/number_checks.h"

#include <CLI/CLI.hpp>
#include <string>

#include "common/base/status.h"

namespace taopd {
namespace {

// `name` is the placeholder of the value in --help.
template <typename Holds>
CLI::Validator NumberCheck(const std::string& name, const std::string& what, Holds holds) {
  return CLI::Validator(
      [what, holds](std::string& input) {
        double value = 0.0;
        if (CLI::detail::lexical_cast(input, value) && holds(value)) return std::string();
        return Concat("must be ", what, ", got ", input);
      },
      name);
}

}  // namespace

CLI::Validator PositiveNumber() {
  return NumberCheck("POSITIVE", "a number above 0", [](double x) { return x > 0.0; });
}
CLI::Validator NonNegativeNumber() {
  return NumberCheck("NONNEGATIVE", "a number that is at least 0",
                     [](double x) { return x >= 0.0; });
}
CLI::Validator NumberIn(double low, double high) {
  return NumberCheck(Concat("in [", low, ", ", high, "]"), Concat("between ", low, " and ", high),
                     [low, high](double x) { return x >= low && x <= high; });
}

}  // namespace taopd
