// What can be said of an expression's value without complex arithmetic (numeric_value.h has that).
//
// Work is counted against a budget of operations, not against a clock: verdicts are the same
// everywhere.
#pragma once

#include <cstdint>
#include <optional>

#include "trainer/grading/algebra/expression.h"

namespace taopd {

// Operations left for one verdict. An evaluation that would exceed them has no value.
struct OperationBudget {
  int64_t left = 60000;
  bool Spend(int64_t operations = 1) { return (left -= operations) >= 0; }
};

// The value as a fraction: no symbol, decimal, root or constant in it, and not too many digits.
std::optional<Rational> ExactValue(const Expr& e, OperationBudget* budget);

bool HasFloat(const Expr& e);
bool HasSymbols(const Expr& e);  // or unknown functions
// Nothing but symbols at the leaves: x, f(x), (x, y), x + y. The left side of an assignment.
bool IsSymbolsOnly(const Expr& e);

// -1, 0 or 1 for real numbers and infinities; nullopt when either is not one.
std::optional<int> CompareReal(const Expr& a, const Expr& b);

}  // namespace taopd
