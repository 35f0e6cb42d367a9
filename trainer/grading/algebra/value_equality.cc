#include "trainer/grading/algebra/value_equality.h"

#include <algorithm>
#include <optional>

#include "trainer/grading/algebra/exact_value.h"
#include "trainer/grading/algebra/numeric_value.h"

namespace taopd::grading {
namespace {

namespace mp = boost::multiprecision;

// Expressions with symbols are compared at kNumPoints points. Both must be defined at kMinPoints or
// more of them.
constexpr int kNumPoints = 8;
constexpr int kMinPoints = 3;

// Equal values computed with 50 digits agree to this tolerance: cancellation costs up to 20 digits.
const Real& ExactTolerance() {
  static const Real value("1e-30");
  return value;
}
// Decimals have the 15 digits of a double.
const Real& FloatTolerance() {
  static const Real value("1e-13");
  return value;
}
// evalf(chop=True) at 15 digits treats differences below 2^-49 as zero.
const Real& ChopTolerance() {
  static const Real value = mp::ldexp(Real(1), -49);
  return value;
}

Real Magnitude(const Complex& z) { return mp::abs(Real(z.real())) + mp::abs(Real(z.imag())); }

const Expr& WithoutPercent(const Expr& e) { return e.kind == ExprKind::kPercent ? *e.args[0] : e; }

// Compares the two values after rounding to 6 decimals.
bool EqualRounded(const Expr& a, const Expr& b, OperationBudget* budget) {
  const auto left = ValueAt(a, 0, budget), right = ValueAt(b, 0, budget);
  if (!left || !right) return false;
  const auto same = [](const Real& x, const Real& y) {
    constexpr int kScale = 1000000;
    return mp::round(Real(x * kScale)) == mp::round(Real(y * kScale)) ||
           mp::abs(Real(x - y)) <= Real("1e-15") * mp::abs(x);
  };
  return same(left->real(), right->real()) && same(left->imag(), right->imag());
}

// With `chop`, differences that evalf treats as zero do not count.
bool ValuesEqual(const Expr& a, const Expr& b, bool symbols, bool chop, OperationBudget* budget) {
  if (!symbols) {
    OperationBudget exact{2000};
    const auto left = ExactValue(a, &exact), right = ExactValue(b, &exact);
    if (left && right) {
      const Rational difference = mp::abs(Rational(*left - *right));
      return difference == 0 || (chop && difference < Rational(1, BigInteger(1) << 49));
    }
  }
  const Real& tolerance = HasFloat(a) || HasFloat(b) ? FloatTolerance() : ExactTolerance();
  int defined = 0;
  for (int point = 0; point < (symbols ? kNumPoints : 1); ++point) {
    const auto left = ValueAt(a, point, budget), right = ValueAt(b, point, budget);
    if (!left || !right) continue;
    const Real difference = Magnitude(Complex(*left - *right));
    const Real size = std::max(Magnitude(*left), Magnitude(*right));
    if (!symbols && chop && difference < ChopTolerance()) return true;
    if (difference > tolerance * size && difference > Real("1e-40")) return false;
    ++defined;
  }
  return defined >= (symbols ? kMinPoints : 1);
}

}  // namespace

bool NumbersEqual(const Expr& a, const Expr& b, OperationBudget* budget) {
  const Expr& a_plain = WithoutPercent(a);
  const Expr& b_plain = WithoutPercent(b);
  const bool atomic = IsNumber(a_plain) || IsNumber(b_plain);
  const bool symbols = HasSymbols(a) || HasSymbols(b);
  if (!symbols && (a_plain.kind == ExprKind::kFloat || b_plain.kind == ExprKind::kFloat)) {
    return EqualRounded(a, b, budget);
  }
  if (IsInteger(a_plain) && IsInteger(b_plain)) {
    // 9 % answers 9.
    return a_plain.number == b_plain.number;
  }
  return ValuesEqual(a, b, symbols, !atomic, budget);
}

bool Proportional(const Expr& a, const Expr& b, OperationBudget* budget) {
  // sympy does not solve equations in unknown functions.
  if (!HasSymbols(a) || !HasSymbols(b) || HasCalls(a) || HasCalls(b)) return false;
  std::optional<Complex> ratio;
  int defined = 0;
  for (int point = 0; point < kNumPoints; ++point) {
    const auto left = ValueAt(a, point, budget), right = ValueAt(b, point, budget);
    if (!left || !right || Magnitude(*left) < ExactTolerance() ||
        Magnitude(*right) < ExactTolerance())
      continue;
    const Complex quotient = *left / *right;
    if (ratio && Magnitude(Complex(quotient - *ratio)) > FloatTolerance() * Magnitude(*ratio))
      return false;
    if (!ratio) ratio = quotient;
    ++defined;
  }
  return defined >= kMinPoints;
}

}  // namespace taopd::grading
