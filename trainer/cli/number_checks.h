// Checks of numbers on the command line. CLI11's own print their limits with six decimals, and the
// largest double with 309 digits.
#pragma once

namespace CLI {
class Validator;
}  // namespace CLI

namespace taopd {

CLI::Validator PositiveNumber();
CLI::Validator NonNegativeNumber();
CLI::Validator NumberIn(double low, double high);

}  // namespace taopd
