#include "trainer/grading/algebra/numeric_value.h"

#include <algorithm>

namespace taopd::grading {
namespace {

namespace mp = boost::multiprecision;

constexpr unsigned kMaxExactBits = 20000;
constexpr int kMaxFactorial = 400;

unsigned Bits(const BigInteger& n) { return n == 0 ? 1 : mp::msb(mp::abs(n)) + 1; }
bool IsSmall(const Rational& r) {
  return Bits(mp::numerator(r)) + Bits(mp::denominator(r)) <= kMaxExactBits;
}
bool IsWhole(const Rational& r) { return mp::denominator(r) == 1; }

BigInteger FloorOf(const Rational& r) {
  BigInteger quotient = mp::numerator(r) / mp::denominator(r);
  if (r < 0 && !IsWhole(r)) --quotient;
  return quotient;
}

std::optional<Rational> ExactPower(const Rational& base, const Rational& exponent) {
  if (!IsWhole(exponent)) return std::nullopt;
  if (base == 0) {
    if (exponent < 0) return std::nullopt;
    return exponent == 0 ? Rational(1) : Rational(0);
  }
  if (base == 1) return Rational(1);
  const BigInteger n = mp::abs(mp::numerator(exponent));
  if (n > kMaxExactBits) return std::nullopt;
  const auto power = n.convert_to<unsigned>();
  if (static_cast<uint64_t>(power) * (Bits(mp::numerator(base)) + Bits(mp::denominator(base))) >
      kMaxExactBits) {
    return std::nullopt;
  }
  const Rational result(mp::pow(mp::numerator(base), power), mp::pow(mp::denominator(base), power));
  return exponent < 0 ? Rational(1) / result : result;
}

std::optional<Rational> ExactFactorial(const Rational& n) {
  if (!IsWhole(n) || n < 0 || n > kMaxFactorial) return std::nullopt;
  BigInteger product = 1;
  for (int i = 2; i <= n.convert_to<int>(); ++i) product *= i;
  return Rational(product);
}

}  // namespace

std::optional<Rational> ExactFunction(const std::string& name, const std::vector<Rational>& args) {
  const Rational& x = args[0];
  if (name == "abs") return x < 0 ? Rational(-x) : x;
  if (name == "floor") return Rational(FloorOf(x));
  if (name == "ceiling") return Rational(-FloorOf(-x));
  if (name == "factorial") return ExactFactorial(x);
  if (name == "gamma") return ExactFactorial(x - 1);
  if (args.size() == 2 && name == "mod" && args[1] != 0)
    return x - args[1] * Rational(FloorOf(x / args[1]));
  if (args.size() == 2 && name == "binomial" && IsWhole(args[1]) && IsWhole(x)) {
    if (args[1] < 0) return Rational(0);
    if (args[1] > kMaxFactorial) return std::nullopt;
    Rational product = 1;
    for (int i = 0; i < args[1].convert_to<int>(); ++i) {
      product = product * (x - i) / (i + 1);
      if (!IsSmall(product)) return std::nullopt;
    }
    return product;
  }
  if (name == "max") return *std::ranges::max_element(args);
  if (name == "min") return *std::ranges::min_element(args);
  if (name == "gcd" || name == "lcm") {
    if (!std::ranges::all_of(args, IsWhole)) return std::nullopt;
    BigInteger result = mp::numerator(x);
    for (const Rational& arg : args) {
      const BigInteger n = mp::numerator(arg);
      result = name == "gcd" ? BigInteger(mp::gcd(result, n)) : BigInteger(mp::lcm(result, n));
      if (!IsSmall(Rational(result))) return std::nullopt;
    }
    return Rational(mp::abs(result));
  }
  return std::nullopt;
}

std::optional<Rational> ExactValue(const Expr& e, OperationBudget* budget) {
  if (!budget->Spend()) return std::nullopt;
  if (e.kind == ExprKind::kRational) return e.number;
  if (e.args.empty()) return std::nullopt;
  if (e.kind != ExprKind::kAdd && e.kind != ExprKind::kMul && e.kind != ExprKind::kPow &&
      e.kind != ExprKind::kPercent && e.kind != ExprKind::kFunction) {
    return std::nullopt;
  }
  std::vector<Rational> args;
  for (const ExprPtr& arg : e.args) {
    const auto value = ExactValue(*arg, budget);
    if (!value) return std::nullopt;
    args.push_back(*value);
  }
  std::optional<Rational> result;
  switch (e.kind) {
    case ExprKind::kAdd:
    case ExprKind::kMul:
      result = args[0];
      for (size_t i = 1; i < args.size(); ++i) {
        *result =
            e.kind == ExprKind::kAdd ? Rational(*result + args[i]) : Rational(*result * args[i]);
        if (!IsSmall(*result)) return std::nullopt;
      }
      break;
    case ExprKind::kPow:
      result = ExactPower(args[0], args[1]);
      break;
    case ExprKind::kPercent:
      result = args[0] / 100;
      break;
    default:
      result = ExactFunction(e.name, args);
  }
  return result && IsSmall(*result) ? result : std::nullopt;
}

}  // namespace taopd::grading
