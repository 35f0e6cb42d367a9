// What an answer says, as a tree: numbers, expressions, relations, sets, tuples and matrices. Built
// by latex_parser.h, compared by equality.h.
//
// Trees are immutable and shared; any thread may read them. Their depth is bounded by the parser
// (kMaxExpressionDepth), so plain recursion over them is safe.
#pragma once

#include <boost/multiprecision/cpp_int.hpp>
#include <memory>
#include <string>
#include <vector>

namespace taopd {

using Rational = boost::multiprecision::cpp_rational;
using BigInteger = boost::multiprecision::cpp_int;

// Deeper nesting is refused by the parser: twenty times what any published answer has.
inline constexpr int kMaxExpressionDepth = 120;

enum class ExprKind {
  kRational,  // `number`, exact
  kFloat,     // `number`, written with a decimal point: compared after rounding
  kSymbol,    // `name`, lower case
  kPi,
  kE,
  kImaginary,
  kInfinity,
  kEulerGamma,
  kAdd,
  kMul,
  kPow,
  kPercent,   // args[0] / 100, kept apart because 9 % and 9 count as the same answer
  kFunction,  // a known function `name` of args: sin, log (argument, base), abs, floor, ...
  kCall,  // an unknown function `name` of args, and operators that are compared by their text only
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,   // args {left, right}
  kAnd,  // a chain of relations, in reading order
  kTuple,
  kFiniteSet,  // in reading order, repeated elements dropped
  kInterval,   // args {start, end}
  kUnion,
  kIntersection,
  kComplement,
  kNamedSet,  // `name`: R, Z, ...; "" is the empty set
  kMatrix,    // rows x columns, row-major
};

struct Expr;
using ExprPtr = std::shared_ptr<const Expr>;

struct Expr {
  ExprKind kind = ExprKind::kRational;
  Rational number = 0;
  std::string name;
  std::vector<ExprPtr> args;
  bool left_open = false, right_open = false;  // kInterval
  int rows = 0;                                // kMatrix; columns = args / rows
};

ExprPtr MakeRational(Rational value);
ExprPtr MakeFloat(Rational value);
ExprPtr MakeSymbol(std::string name);
ExprPtr MakeConstant(ExprKind kind);
ExprPtr MakeNode(ExprKind kind, std::vector<ExprPtr> args, std::string name = "");
// Sum and product with nested sums and products spliced in, in reading order.
ExprPtr MakeAdd(ExprPtr left, ExprPtr right);
ExprPtr MakeMul(ExprPtr left, ExprPtr right);
ExprPtr Negate(ExprPtr value);
// Equal texts are dropped; keeps the order of first appearance.
ExprPtr MakeFiniteSet(const std::vector<ExprPtr>& elements);

inline bool IsInteger(const Expr& e) {
  return e.kind == ExprKind::kRational && boost::multiprecision::denominator(e.number) == 1;
}
// A number as written: integer, fraction, decimal or infinity.
inline bool IsNumber(const Expr& e) {
  return e.kind == ExprKind::kRational || e.kind == ExprKind::kFloat ||
         e.kind == ExprKind::kInfinity;
}
inline bool IsRelation(const Expr& e) { return e.kind >= ExprKind::kEq && e.kind <= ExprKind::kGe; }
inline bool IsSet(const Expr& e) {
  return e.kind >= ExprKind::kFiniteSet && e.kind <= ExprKind::kNamedSet;
}

// One text per tree; sums, products and sets are sorted, so that a+b and b+a agree. For structural
// equality, and to name what has no numeric value.
std::string CanonicalText(const Expr& e);

// A decimal text ("12.50", ".5", "6.02E23") exactly. False when it is not one, or its exponent
// exceeds kMaxDecimalExponent.
inline constexpr int kMaxDecimalExponent = 2000;
bool ParseDecimal(const std::string& text, Rational* value, bool* is_float);

}  // namespace taopd
