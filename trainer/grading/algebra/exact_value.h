// Values of expressions as exact fractions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trainer/grading/algebra/expression.h"

namespace taopd::grading {

// Returns the value as a fraction. Returns nullopt if the tree holds a symbol, a decimal, a root or
// a constant, if the fraction has too many digits, or if the budget is spent.
std::optional<Rational> ExactValue(const Expr& e, OperationBudget* budget);

// Returns the value of the known function `name` (kFunction) for one or more exact arguments.
// Returns nullopt if the value is not a fraction or is too large.
std::optional<Rational> ExactFunction(const std::string& name, const std::vector<Rational>& args);

}  // namespace taopd::grading
