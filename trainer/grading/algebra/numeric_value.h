// Values of expressions: as exact fractions (exact_value.cc), and as complex numbers of 50 digits
// with symbols at fixed real points (numeric_value.cc). The latter decide equality where a computer
// algebra system would simplify: two expressions that agree to 30 digits at several points count as
// equal. The points depend only on the names of the symbols.
#pragma once

#include <boost/multiprecision/cpp_complex.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trainer/grading/algebra/expression.h"

namespace taopd::grading {

using Complex = boost::multiprecision::cpp_complex_50;
using Real = boost::multiprecision::cpp_bin_float_50;

// Returns the value as a fraction. Returns nullopt if the tree holds a symbol, a decimal, a root or
// a constant, if the fraction has too many digits, or if the budget is spent.
std::optional<Rational> ExactValue(const Expr& e, OperationBudget* budget);

// Returns the value of the known function `name` (kFunction) for one or more exact arguments.
// Returns nullopt if the value is not a fraction or is too large.
std::optional<Rational> ExactFunction(const std::string& name, const std::vector<Rational>& args);

// Returns the value of `e` with every symbol and every unknown function at its `point`-th value.
// Returns nullopt if the value is undefined there, infinite or not a number (a set, a matrix), or
// if the budget is spent.
std::optional<Complex> ValueAt(const Expr& e, int point, OperationBudget* budget);

// Returns -1, 0 or 1 as a is less than, equal to or greater than b, which are real numbers or
// infinities. Returns nullopt if either of them is something else.
std::optional<int> CompareReal(const Expr& a, const Expr& b);

}  // namespace taopd::grading
