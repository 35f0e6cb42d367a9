// Whether two expressions have the same value. math-verify asks sympy to simplify a difference;
// this compares exact fractions, and values at several points where there are none.
#pragma once

#include "trainer/grading/algebra/expression.h"
#include "trainer/grading/algebra/operation_budget.h"

namespace taopd::grading {

// Both are false if the budget runs out.

// True if a and b are numbers, or expressions of symbols, of equal value. Decimals are compared
// rounded to 6 places, and 9 % equals 9.
bool NumbersEqual(const Expr& a, const Expr& b, OperationBudget* budget);

// True if one expression is a constant multiple of the other, so that a = 0 and b = 0 have the same
// solutions. False for expressions without symbols, and with unknown functions: sympy does not
// solve equations in them.
bool Proportional(const Expr& a, const Expr& b, OperationBudget* budget);

}  // namespace taopd::grading
