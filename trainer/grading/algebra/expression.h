// The meaning of an answer as a tree of numbers, expressions, relations, sets, tuples and matrices.
//
// Trees are immutable and shared; any thread may read them. The parsers limit their depth to
// kMaxExpressionDepth, so plain recursion over them is safe.
#pragma once

#include <boost/multiprecision/cpp_int.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace taopd::grading {

// Bounds the work for one verdict by a number of operations. It does not depend on a clock, so
// every machine reaches the same verdict. An evaluation that would exceed it has no value.
struct OperationBudget {
  int64_t left = 60000;
  // Returns false if the budget is exceeded.
  bool Spend(int64_t operations = 1) { return (left -= operations) >= 0; }
};

using Rational = boost::multiprecision::cpp_rational;
using BigInteger = boost::multiprecision::cpp_int;

// The parsers refuse deeper nesting. Published answers nest less than a twentieth as deep.
inline constexpr int kMaxExpressionDepth = 120;

enum class ExprKind {
  // `number`, exact.
  kRational,
  // `number`, written with a decimal point: compared after rounding.
  kFloat,
  // `name`, in lower case.
  kSymbol,
  kPi,
  kE,
  kImaginary,
  kInfinity,
  kEulerGamma,
  kAdd,
  kMul,
  kPow,
  // args[0] / 100. It is a kind of its own because 9 % and 9 count as the same answer.
  kPercent,
  // The known function `name` of args: sin, log (argument, base), abs, floor, ...
  kFunction,
  // The unknown function `name` of args, and operators that are compared by their text only.
  kCall,
  // Relations: args {left, right}.
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  // A chain of relations, in reading order.
  kAnd,
  kTuple,
  // In reading order, without repeated elements.
  kFiniteSet,
  // args {start, end}.
  kInterval,
  kUnion,
  kIntersection,
  kComplement,
  // `name`: R, Z, ...; "" is the empty set.
  kNamedSet,
  // [rows, columns], row-major.
  kMatrix,
};

struct Expr;
using ExprPtr = std::shared_ptr<const Expr>;

struct Expr {
  ExprKind kind = ExprKind::kRational;
  Rational number = 0;
  std::string name;
  std::vector<ExprPtr> args;
  // For kInterval only.
  bool left_open = false, right_open = false;
  // For kMatrix only. The matrix has args.size() / rows columns.
  int rows = 0;
};

ExprPtr MakeRational(Rational value);
ExprPtr MakeFloat(Rational value);
ExprPtr MakeSymbol(std::string name);
ExprPtr MakeConstant(ExprKind kind);
ExprPtr MakeNode(ExprKind kind, std::vector<ExprPtr> args, std::string name = "");
// Return one flat node: nested sums (for MakeMul, nested products) are spliced in, in reading
// order.
ExprPtr MakeAdd(ExprPtr left, ExprPtr right);
ExprPtr MakeMul(ExprPtr left, ExprPtr right);
ExprPtr Negate(ExprPtr value);
// Drops every element that has the same canonical text as an earlier one and keeps the order of the
// others. Returns the empty set if there are no elements.
ExprPtr MakeFiniteSet(const std::vector<ExprPtr>& elements);

inline bool IsInteger(const Expr& e) {
  return e.kind == ExprKind::kRational && boost::multiprecision::denominator(e.number) == 1;
}
// Returns true for a number as written: integer, fraction, decimal or infinity.
inline bool IsNumber(const Expr& e) {
  return e.kind == ExprKind::kRational || e.kind == ExprKind::kFloat ||
         e.kind == ExprKind::kInfinity;
}
inline bool IsRelation(const Expr& e) { return e.kind >= ExprKind::kEq && e.kind <= ExprKind::kGe; }
inline bool IsSet(const Expr& e) {
  return e.kind >= ExprKind::kFiniteSet && e.kind <= ExprKind::kNamedSet;
}

// Returns a text that identifies the tree. Sums, products and sets are sorted, so a+b and b+a have
// the same text. The text decides structural equality and stands in for trees that have no numeric
// value.
std::string CanonicalText(const Expr& e);

// Returns the exact number of a decimal text ("12.50", ".5", "6.02E23"): a kRational, or a kFloat
// if it has a decimal point or an exponent. Returns nullptr if the text is not a decimal number, or
// has more than kMaxDecimalExponent digits or a larger exponent.
inline constexpr int kMaxDecimalExponent = 2000;
ExprPtr MakeDecimal(const std::string& text);

// Reads arithmetic as a program writes it, with the precedences of Python: 12/5, 2*(3-1)^2, .5+1.
// Returns nullptr if the text is not arithmetic, or is too long or too deep.
ExprPtr ParseArithmetic(std::string_view text);

// Symbols stand for real numbers, except in an answer about complex numbers. There the names of
// symbols begin with this mark, so that they differ from the real symbols, as under sympy's
// assumptions.
inline constexpr char kComplexMark = '~';

// Returns a symbol's name without the mark.
inline std::string_view PlainName(const Expr& symbol) {
  std::string_view name = symbol.name;
  if (!name.empty() && name[0] == kComplexMark) name.remove_prefix(1);
  return name;
}

// Return whether the tree holds a decimal number, a symbol or unknown function, an unknown
// function, and symbols of two or more names, respectively.
bool HasFloat(const Expr& e);
bool HasSymbols(const Expr& e);
bool HasCalls(const Expr& e);
bool HasTwoSymbols(const Expr& e);

// Returns true if all leaves are symbols: x, f(x), (x, y), x + y. The left side of an assignment is
// such a tree.
bool IsSymbolsOnly(const Expr& e);

// Returns `e` as one kMatrix, if it is a matrix, a product of numbers and matrices, or a sum of
// those. Returns nullptr if it is anything else, if the shapes do not fit, or if it is too large.
ExprPtr AsMatrix(const ExprPtr& e);

// `m` is a kMatrix.
ExprPtr Transposed(const Expr& m);

}  // namespace taopd::grading
