#include "trainer/grading/algebra/equality.h"

#include <algorithm>
#include <optional>

#include "trainer/grading/algebra/numeric_value.h"
#include "trainer/grading/algebra/real_set.h"

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

// Compares the two values after rounding to 6 decimals. An integer that no decimal led to is not
// rounded by sympy, and equals no other decimal.
bool EqualRounded(const Expr& a, const Expr& b, OperationBudget* budget) {
  const auto left = ValueAt(a, 0, budget), right = ValueAt(b, 0, budget);
  if (!left || !right) return false;
  const auto equal = [](const Complex& x, const Complex& y) {
    return Magnitude(Complex(x - y)) <= ExactTolerance() * std::max(Real(1), Magnitude(x));
  };
  const auto is_integer = [&](const Expr& e, const Complex& value) {
    return !HasFloat(e) && equal(value, Complex(mp::round(Real(value.real()))));
  };
  if (is_integer(a, *left) || is_integer(b, *right)) return equal(*left, *right);
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

// ---- Values ----
//
// Where math-verify asks sympy to simplify a difference, this compares exact fractions or, for
// expressions without one, values at several points. Both functions return false if the budget runs
// out.

// Returns true if a and b are numbers or expressions of symbols with equal values. Decimals are
// compared rounded to 6 places, but exactly with an integer, and 9 % equals 9.
bool NumbersEqual(const Expr& a, const Expr& b, OperationBudget* budget) {
  const Expr& a_plain = WithoutPercent(a);
  const Expr& b_plain = WithoutPercent(b);
  const bool atomic = IsNumber(a_plain) || IsNumber(b_plain);
  const bool symbols = HasSymbols(a) || HasSymbols(b);
  if (!symbols && (a_plain.kind == ExprKind::kFloat || b_plain.kind == ExprKind::kFloat)) {
    return EqualRounded(a, b, budget);
  }
  if (IsInteger(a_plain) && IsInteger(b_plain)) return a_plain.number == b_plain.number;
  return ValuesEqual(a, b, symbols, !atomic, budget);
}

// Returns true if one expression is a constant multiple of the other, so that a = 0 and b = 0 have
// the same solutions. Returns false if one has fewer than two symbols, because math-verify does not
// compare solutions then, or unknown functions, because sympy does not solve equations in them.
bool Proportional(const Expr& a, const Expr& b, OperationBudget* budget) {
  if (!HasTwoSymbols(a) || !HasTwoSymbols(b) || HasCalls(a) || HasCalls(b)) return false;
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

constexpr size_t kMaxElements = 200;

class Comparison {
 public:
  explicit Comparison(OperationBudget* budget) : budget_(budget) {}

  bool Equal(ExprPtr gold, ExprPtr answer) {
    if (depth_ >= kMaxExpressionDepth || !budget_->Spend()) return false;
    ++depth_;
    const bool result = EqualForms(std::move(gold), std::move(answer));
    --depth_;
    return result;
  }

 private:
  static bool IsEquation(const Expr& e) {
    if (e.kind == ExprKind::kEq) return true;
    return e.kind == ExprKind::kAnd &&
           std::ranges::all_of(e.args, [](const ExprPtr& a) { return a->kind == ExprKind::kEq; });
  }
  static const Expr& First(const Expr& e) { return e.kind == ExprKind::kAnd ? *e.args.front() : e; }
  static const Expr& Last(const Expr& e) { return e.kind == ExprKind::kAnd ? *e.args.back() : e; }
  static bool IsAssignment(const Expr& e) {
    return IsEquation(e) && IsSymbolsOnly(*First(e).args[0]);
  }
  static bool IsRelationOrChain(const Expr& e) { return IsRelation(e) || e.kind == ExprKind::kAnd; }
  static bool IsSetOrTuple(const Expr& e) { return IsSet(e) || e.kind == ExprKind::kTuple; }

  bool EqualForms(ExprPtr gold, ExprPtr answer) {
    const bool gold_assigns = IsAssignment(*gold), gold_equation = IsEquation(*gold);
    const bool answer_equation = IsEquation(*answer);
    // x = a = b means x = b.
    if (gold_assigns) gold = MakeNode(ExprKind::kEq, {First(*gold).args[0], Last(*gold).args[1]});
    if (IsAssignment(*answer))
      answer = MakeNode(ExprKind::kEq, {First(*answer).args[0], Last(*answer).args[1]});
    if (answer_equation && !gold_equation) {
      answer = Last(*answer).args[1];
    } else if (gold_assigns && !answer_equation) {
      gold = Last(*gold).args[1];
    }
    if (IsRelationOrChain(*gold) && IsSet(*answer)) {
      if (ExprPtr set = RelationAsSet(*gold)) gold = set;
    }
    if (gold->name == "zoo") return false;
    if (CanonicalText(*gold) == CanonicalText(*answer)) return true;
    if (IsRelationOrChain(*gold) && IsRelationOrChain(*answer))
      return RelationsEqual(*gold, *answer);
    if (IsSetOrTuple(*gold) || IsSetOrTuple(*answer)) return SetsEqual(gold, answer);
    if (IsRelationOrChain(*gold) || IsRelationOrChain(*answer)) return false;
    if (gold->kind == ExprKind::kSymbol || answer->kind == ExprKind::kSymbol)
      return SymbolsEqual(*gold, *answer);
    const ExprPtr gold_matrix = AsMatrix(gold), answer_matrix = AsMatrix(answer);
    if (gold_matrix || answer_matrix) {
      return gold_matrix && answer_matrix && gold_matrix->rows == answer_matrix->rows &&
             std::ranges::equal(gold_matrix->args, answer_matrix->args,
                                [this](const ExprPtr& a, const ExprPtr& b) {
                                  return NumbersEqual(*a, *b, budget_);
                                });
    }
    return NumbersEqual(*gold, *answer, budget_);
  }

  // --- symbols ----------------------------------------------------------------------------------

  // Returns a*b*c as "abc", or an empty string if a factor is not a letter.
  static std::string Concatenated(const Expr& e) {
    if (e.kind != ExprKind::kMul) return "";
    std::string text;
    for (const ExprPtr& arg : e.args) {
      if (arg->kind != ExprKind::kSymbol && arg->kind != ExprKind::kE) return "";
      text += arg->kind == ExprKind::kE ? "e" : PlainName(*arg);
    }
    return text;
  }

  // A word is read as one symbol in \text{} and as a product of letters without it.
  static bool SymbolsEqual(const Expr& gold, const Expr& answer) {
    for (const auto& [symbol, other] : {std::pair{&gold, &answer}, std::pair{&answer, &gold}}) {
      if (symbol->kind != ExprKind::kSymbol) continue;
      const std::string_view name = PlainName(*symbol);
      if (other->kind == ExprKind::kE) return name == "e";
      if (other->kind == ExprKind::kSymbol) return name == PlainName(*other);
      if (const std::string word = Concatenated(*other); !word.empty()) return name == word;
      if (other->kind == ExprKind::kRational) return name == other->number.str();
    }
    return false;
  }

  // --- sets and tuples --------------------------------------------------------------------------

  bool SetsEqual(const ExprPtr& gold, const ExprPtr& answer) {
    const ExprPtr a = IsSetOrTuple(*gold) ? gold : MakeFiniteSet({gold});
    const ExprPtr b = IsSetOrTuple(*answer) ? answer : MakeFiniteSet({answer});
    if (a->kind == ExprKind::kInterval && b->kind == ExprKind::kInterval) {
      return a->left_open == b->left_open && a->right_open == b->right_open &&
             Equal(a->args[0], b->args[0]) && Equal(a->args[1], b->args[1]);
    }
    if (CanonicalText(*a) == CanonicalText(*b)) return true;
    if (IsSet(*a) && IsSet(*b)) {
      const auto left = RealPieces(*a), right = RealPieces(*b);
      if (left && right && SamePieces(*left, *right)) return true;
      if (a->kind == b->kind && a->kind >= ExprKind::kUnion && a->kind <= ExprKind::kComplement) {
        return (SetsEqual(a->args[0], b->args[0]) && SetsEqual(a->args[1], b->args[1])) ||
               (a->kind != ExprKind::kComplement && SetsEqual(a->args[0], b->args[1]) &&
                SetsEqual(a->args[1], b->args[0]));
      }
    }
    const auto pair = [](const Expr& e) {
      return e.kind == ExprKind::kInterval && e.left_open && e.right_open;
    };
    const auto list = [](const Expr& e) {
      return e.kind == ExprKind::kFiniteSet || e.kind == ExprKind::kTuple;
    };
    if (!(list(*a) || pair(*a)) || !(list(*b) || pair(*b))) return false;
    return ElementsEqual(a->args, b->args, a->kind == ExprKind::kFiniteSet);
  }

  bool ElementsEqual(const std::vector<ExprPtr>& gold, const std::vector<ExprPtr>& answer,
                     bool any_order) {
    if (gold.size() != answer.size() || gold.size() > kMaxElements) return false;
    std::vector<bool> used(answer.size(), false);
    for (size_t i = 0; i < gold.size(); ++i) {
      if (!any_order) {
        if (!Equal(gold[i], answer[i])) return false;
        continue;
      }
      size_t j = 0;
      while (j < answer.size() && (used[j] || !Equal(gold[i], answer[j]))) ++j;
      if (j == answer.size()) return false;
      used[j] = true;
    }
    return true;
  }

  // --- relations --------------------------------------------------------------------------------

  static ExprPtr Difference(const Expr& relation, bool flipped) {
    const ExprPtr& left = relation.args[flipped ? 1 : 0];
    const ExprPtr& right = relation.args[flipped ? 0 : 1];
    return MakeAdd(left, MakeMul(MakeRational(-1), right));
  }

  static ExprKind Inverse(ExprKind kind) {
    static constexpr std::pair<ExprKind, ExprKind> kInverses[] = {{ExprKind::kLt, ExprKind::kGt},
                                                                  {ExprKind::kLe, ExprKind::kGe},
                                                                  {ExprKind::kGt, ExprKind::kLt},
                                                                  {ExprKind::kGe, ExprKind::kLe}};
    for (const auto& [relation, inverse] : kInverses) {
      if (kind == relation) return inverse;
    }
    return kind;
  }

  bool RelationsEqual(const Expr& gold, const Expr& answer) {
    if (gold.kind == ExprKind::kAnd || answer.kind == ExprKind::kAnd) {
      if (gold.kind != answer.kind || gold.args.size() != answer.args.size()) return false;
      for (size_t i = 0; i < gold.args.size(); ++i) {
        if (!RelationsEqual(*gold.args[i], *answer.args[i])) return false;
      }
      return true;
    }
    if (IsSetOrTuple(*gold.args[1]) || IsSetOrTuple(*answer.args[1]) ||
        IsSetOrTuple(*gold.args[0])) {
      return gold.kind == answer.kind && Equal(gold.args[0], answer.args[0]) &&
             Equal(gold.args[1], answer.args[1]);
    }
    const ExprPtr a = Difference(gold, false), b = Difference(answer, false);
    if (gold.kind == answer.kind && Equal(a, b)) return true;
    if (Inverse(gold.kind) == answer.kind && gold.kind != ExprKind::kNe &&
        Equal(a, Difference(answer, true))) {
      return true;
    }
    return gold.kind == ExprKind::kEq && answer.kind == ExprKind::kEq &&
           Proportional(*a, *b, budget_);
  }

  OperationBudget* const budget_;
  int depth_ = 0;
};

}  // namespace

bool AnswersEqual(const ExprPtr& gold, const ExprPtr& answer, OperationBudget* budget) {
  return Comparison(budget).Equal(gold, answer);
}

}  // namespace taopd::grading
