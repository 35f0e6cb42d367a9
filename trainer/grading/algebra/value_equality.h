// Decides whether two expressions have the same value. Where math-verify asks sympy to simplify a
// difference, this compares exact fractions or, for expressions without one, values at several
// points.
#pragma once

#include "trainer/grading/algebra/expression.h"
#include "trainer/grading/algebra/operation_budget.h"

namespace taopd::grading {

// Both functions return false if the budget runs out.

// Returns true if a and b are numbers or expressions of symbols with equal values. Decimals are
// compared rounded to 6 places, and 9 % equals 9.
bool NumbersEqual(const Expr& a, const Expr& b, OperationBudget* budget);

// Returns true if one expression is a constant multiple of the other, so that a = 0 and b = 0 have
// the same solutions. Returns false for expressions without symbols, and for unknown functions,
// because sympy does not solve equations in them.
bool Proportional(const Expr& a, const Expr& b, OperationBudget* budget);

}  // namespace taopd::grading
