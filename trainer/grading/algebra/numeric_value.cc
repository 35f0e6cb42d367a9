#include "trainer/grading/algebra/numeric_value.h"

#include <algorithm>

namespace taopd::grading {
namespace {

namespace mp = boost::multiprecision;

// Returns a real number in +-(0.25, 2.25) that depends only on the name and the point. Its sign
// varies with the point.
Complex SymbolValue(const std::string& name, int point) {
  uint64_t hash = 1469598103934665603ull + static_cast<uint64_t>(point) * 0x9E3779B97F4A7C15ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  hash ^= hash >> 29;
  hash *= 0xBF58476D1CE4E5B9ull;
  hash ^= hash >> 32;
  const Real fraction = Real(hash >> 12) / Real(uint64_t{1} << 52);
  const Real magnitude = Real(1) / 4 + 2 * fraction;
  return Complex((hash & 1) != 0 ? Real(-magnitude) : magnitude);
}

const Real& MaxMagnitude() {
  static const Real limit("1e4000");
  return limit;
}

bool IsFinite(const Complex& z) {
  const Real re = z.real(), im = z.imag();
  return mp::isfinite(re) && mp::isfinite(im) && mp::abs(re) < MaxMagnitude() &&
         mp::abs(im) < MaxMagnitude();
}

// Returns the gamma function of a real number: by Stirling's series at x >= 40, where 20 terms give
// 45 digits, and by the recurrence from there for smaller x. Returns nullopt at the poles and
// beyond |x| = 2000.
std::optional<Real> Gamma(Real x) {
  if (mp::abs(x) > 2000 || (x <= 0 && mp::floor(x) == x)) return std::nullopt;
  // B_2, B_4, ... by their recurrence.
  static const std::vector<Real> bernoulli = [] {
    constexpr unsigned kTerms = 20;
    std::vector<Rational> b = {1, Rational(-1, 2)};
    for (unsigned m = 2; m <= 2 * kTerms; ++m) {
      Rational sum = 0, binomial = 1;
      for (unsigned k = 0; k < m; ++k) {
        sum += binomial * b[k];
        binomial = binomial * (m + 1 - k) / (k + 1);
      }
      b.push_back(-sum / (m + 1));
    }
    std::vector<Real> even;
    for (unsigned m = 2; m <= 2 * kTerms; m += 2)
      even.push_back(Real(mp::numerator(b[m])) / Real(mp::denominator(b[m])));
    return even;
  }();
  Real shift = 1;
  for (; x < 40; x += 1) shift *= x;
  const Real pi = mp::acos(Real(-1));
  Real log = (x - Real(1) / 2) * mp::log(x) - x + mp::log(Real(2 * pi)) / 2;
  Real power = x;
  for (size_t k = 0; k < bernoulli.size(); ++k, power *= x * x) {
    log += bernoulli[k] / (Real((2 * k + 2) * (2 * k + 1)) * power);
  }
  return Real(mp::exp(log) / shift);
}

class Evaluator {
 public:
  Evaluator(int point, OperationBudget* budget) : point_(point), budget_(budget) {}

  std::optional<Complex> Value(const Expr& e) {
    if (!budget_->Spend()) return std::nullopt;
    std::optional<Complex> z = Compute(e);
    return z && IsFinite(*z) ? z : std::nullopt;
  }

 private:
  std::optional<Complex> Compute(const Expr& e) {
    switch (e.kind) {
      case ExprKind::kRational:
      case ExprKind::kFloat:
        return Complex(Real(mp::numerator(e.number)) / Real(mp::denominator(e.number)));
      case ExprKind::kSymbol:
        return SymbolValue(e.name, point_);
      case ExprKind::kPi:
        return Complex(mp::acos(Real(-1)));
      case ExprKind::kE:
        return Complex(mp::exp(Real(1)));
      case ExprKind::kImaginary:
        return Complex(Real(0), Real(1));
      case ExprKind::kEulerGamma:
        return Complex(Real("0.57721566490153286060651209008240243104215933593992359880577"));
      case ExprKind::kCall:
        return e.name == "zoo" ? std::nullopt
                               : std::optional(SymbolValue(CanonicalText(e), point_));
      case ExprKind::kAdd:
      case ExprKind::kMul:
        return SumOrProduct(e);
      case ExprKind::kPow:
        return Power(*e.args[0], *e.args[1]);
      case ExprKind::kPercent: {
        auto z = Value(*e.args[0]);
        if (z) *z /= 100;
        return z;
      }
      case ExprKind::kFunction:
        return Function(e);
      default:
        return std::nullopt;
    }
  }

  std::optional<Complex> SumOrProduct(const Expr& e) {
    const bool sum = e.kind == ExprKind::kAdd;
    Complex result(sum ? 0 : 1);
    for (const ExprPtr& arg : e.args) {
      const auto z = Value(*arg);
      if (!z) return std::nullopt;
      if (sum) {
        result += *z;
      } else {
        result *= *z;
      }
    }
    return result;
  }

  std::optional<Complex> Power(const Expr& base_expr, const Expr& exponent_expr) {
    const auto base = Value(base_expr);
    const auto exponent = Value(exponent_expr);
    if (!base || !exponent) return std::nullopt;
    if (base->real() == 0 && base->imag() == 0) {
      if (exponent->real() > 0) return Complex(0);
      return exponent->real() == 0 && exponent->imag() == 0 ? std::optional(Complex(1))
                                                            : std::nullopt;
    }
    if (exponent_expr.kind == ExprKind::kRational && mp::denominator(exponent_expr.number) == 1 &&
        mp::abs(mp::numerator(exponent_expr.number)) <= 1000) {
      const int n = exponent_expr.number.convert_to<int>();
      Complex result(1), square = *base;
      for (int bits = std::abs(n); bits > 0; bits >>= 1) {
        if (bits & 1) result *= square;
        square *= square;
      }
      return n < 0 ? Complex(1) / result : result;
    }
    if (!budget_->Spend(20)) return std::nullopt;
    if (exponent->imag() == 0 && exponent->real() * 2 == 1) return mp::sqrt(*base);
    const Complex log = mp::log(*base) * *exponent;
    if (mp::abs(log.real()) > 9000 || mp::abs(log.imag()) > Real("1e20")) return std::nullopt;
    return mp::exp(log);
  }

  static bool IsReal(const Complex& z) {
    return mp::abs(z.imag()) <= Real("1e-40") * (1 + mp::abs(z.real()));
  }

  std::optional<Complex> Function(const Expr& e) {
    if (e.name == "det") return Determinant(*e.args[0]);
    std::vector<Complex> args;
    for (const ExprPtr& arg : e.args) {
      const auto z = Value(*arg);
      if (!z) return std::nullopt;
      args.push_back(*z);
    }
    if (!budget_->Spend(20)) return std::nullopt;
    const Complex& z = args[0];
    if (mp::abs(z.real()) > Real("1e20") || mp::abs(z.imag()) > 9000) return std::nullopt;
    const std::string& f = e.name;
    const Complex one(1);
    if (f == "abs") return Complex(mp::sqrt(Real(z.real() * z.real() + z.imag() * z.imag())));
    if (f == "log") {
      const Complex base = mp::log(args[1]);
      if ((z.real() == 0 && z.imag() == 0) || (base.real() == 0 && base.imag() == 0))
        return std::nullopt;
      return mp::log(z) / base;
    }
    if (f == "sin") return mp::sin(z);
    if (f == "cos") return mp::cos(z);
    if (f == "tan") return mp::sin(z) / mp::cos(z);
    if (f == "csc") return one / mp::sin(z);
    if (f == "sec") return one / mp::cos(z);
    if (f == "cot") return mp::cos(z) / mp::sin(z);
    if (f == "asin") return mp::asin(z);
    if (f == "acos") return mp::acos(z);
    if (f == "atan") return mp::atan(z);
    if (f == "acsc") return mp::asin(one / z);
    if (f == "asec") return mp::acos(one / z);
    if (f == "acot") return mp::atan(one / z);
    if (f == "asinh") return mp::log(z + mp::sqrt(Complex(z * z + one)));
    if (f == "acosh") return mp::log(z + mp::sqrt(Complex(z + one)) * mp::sqrt(Complex(z - one)));
    if (f == "atanh") return (mp::log(Complex(one + z)) - mp::log(Complex(one - z))) / 2;
    if (mp::abs(z.real()) > 9000 && (f == "sinh" || f == "cosh" || f == "tanh"))
      return std::nullopt;
    const Complex up = f == "sinh" || f == "cosh" || f == "tanh" ? Complex(mp::exp(z)) : one;
    const Complex down = one / up;
    if (f == "sinh") return (up - down) / 2;
    if (f == "cosh") return (up + down) / 2;
    if (f == "tanh") return (up - down) / (up + down);
    return RealFunction(e, args);
  }

  std::optional<Complex> RealFunction(const Expr& e, const std::vector<Complex>& args) {
    if (!std::ranges::all_of(args, IsReal)) return SymbolValue(CanonicalText(e), point_);
    std::vector<Rational> exact;
    for (const Complex& arg : args) {
      const Real rounded = mp::round(arg.real());
      if (mp::abs(arg.real() - rounded) > Real("1e-40") * (1 + mp::abs(rounded))) break;
      exact.emplace_back(BigInteger(rounded));
    }
    if (exact.size() == args.size()) {
      const auto value = ExactFunction(e.name, exact);
      if (value) return Complex(Real(mp::numerator(*value)) / Real(mp::denominator(*value)));
    }
    if (e.name == "floor") return Complex(mp::floor(args[0].real()));
    if (e.name == "ceiling") return Complex(mp::ceil(args[0].real()));
    if (e.name == "mod" && args[1].real() != 0) {
      return Complex(args[0].real() -
                     args[1].real() * mp::floor(Real(args[0].real() / args[1].real())));
    }
    if (e.name == "max" || e.name == "min") {
      Real best = args[0].real();
      for (const Complex& arg : args) {
        best =
            e.name == "max" ? std::max(best, Real(arg.real())) : std::min(best, Real(arg.real()));
      }
      return Complex(best);
    }
    if (e.name == "factorial" || e.name == "gamma") {
      const auto value = Gamma(args[0].real() + (e.name == "factorial" ? 1 : 0));
      return value ? std::optional(Complex(*value)) : std::nullopt;
    }
    // A tree without a numeric value gets a value of its own, so it equals only itself.
    return SymbolValue(CanonicalText(e), point_);
  }

  std::optional<Complex> Determinant(const Expr& matrix) {
    const auto n = static_cast<size_t>(matrix.rows);
    if (matrix.kind != ExprKind::kMatrix || n * n != matrix.args.size() || n > 8)
      return std::nullopt;
    std::vector<Complex> m;
    for (const ExprPtr& arg : matrix.args) {
      const auto z = Value(*arg);
      if (!z) return std::nullopt;
      m.push_back(*z);
    }
    Complex result(1);
    for (size_t column = 0; column < n; ++column) {
      size_t pivot = column;
      for (size_t row = column; row < n; ++row) {
        if (mp::norm(m[row * n + column]) > mp::norm(m[pivot * n + column])) pivot = row;
      }
      if (mp::norm(m[pivot * n + column]) == 0) return Complex(0);
      if (pivot != column) {
        for (size_t k = 0; k < n; ++k) std::swap(m[pivot * n + k], m[column * n + k]);
        result = -result;
      }
      result *= m[column * n + column];
      for (size_t row = column + 1; row < n; ++row) {
        const Complex factor = m[row * n + column] / m[column * n + column];
        for (size_t k = column; k < n; ++k) m[row * n + k] -= factor * m[column * n + k];
      }
    }
    return result;
  }

  const int point_;
  OperationBudget* const budget_;
};

}  // namespace

std::optional<Complex> ValueAt(const Expr& e, int point, OperationBudget* budget) {
  return Evaluator(point, budget).Value(e);
}

std::optional<int> CompareReal(const Expr& a, const Expr& b) {
  OperationBudget budget{2000};
  const auto infinite = [](const Expr& e) {
    if (e.kind == ExprKind::kInfinity) return 1;
    const bool negated =
        e.kind == ExprKind::kMul && e.args.size() == 2 && e.args[1]->kind == ExprKind::kInfinity;
    return negated && e.args[0]->kind == ExprKind::kRational && e.args[0]->number < 0 ? -1 : 0;
  };
  const int left_infinite = infinite(a), right_infinite = infinite(b);
  if (HasSymbols(a) || HasSymbols(b)) return std::nullopt;
  if (left_infinite != 0 || right_infinite != 0) {
    return left_infinite == right_infinite ? 0 : (left_infinite < right_infinite ? -1 : 1);
  }
  const auto left_exact = ExactValue(a, &budget), right_exact = ExactValue(b, &budget);
  if (left_exact && right_exact)
    return *left_exact < *right_exact ? -1 : (*left_exact > *right_exact ? 1 : 0);
  const auto left = ValueAt(a, 0, &budget), right = ValueAt(b, 0, &budget);
  if (!left || !right || mp::abs(left->imag()) > Real("1e-40") ||
      mp::abs(right->imag()) > Real("1e-40")) {
    return std::nullopt;
  }
  const Real difference = left->real() - right->real();
  if (mp::abs(difference) <= Real("1e-38") * (1 + mp::abs(left->real()))) return 0;
  return difference < 0 ? -1 : 1;
}

}  // namespace taopd::grading
