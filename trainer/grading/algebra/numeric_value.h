// Values of expressions as complex numbers of 50 digits, with symbols at fixed real points. This
// decides equality where a computer algebra system would simplify: two expressions that agree at
// several points to 30 digits are equal. Points come from the names of the symbols.
#pragma once

#include <boost/multiprecision/cpp_complex.hpp>
#include <optional>

#include "trainer/grading/algebra/evaluate.h"

namespace taopd {

using Complex = boost::multiprecision::cpp_complex_50;
using Real = boost::multiprecision::cpp_bin_float_50;

// The value with every symbol (and every unknown function) at its `point`-th value. nullopt:
// undefined there, infinite, not a number (a set, a matrix), or the budget is spent.
std::optional<Complex> ValueAt(const Expr& e, int point, OperationBudget* budget);

}  // namespace taopd
