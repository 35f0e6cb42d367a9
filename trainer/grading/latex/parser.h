// An answer in (normalised) LaTeX as a tree. The language, its precedences and its oddities are
// those of latex2sympy2_extended 1.11, which reads answers for math-verify 0.9: "2\frac{1}{2}" is a
// mixed number, "1,234" a number and "1,2" a set, "(1,2)" an open interval, "f(x)" a call, "\log"
// has base 10, a degree sign or a number's subscript changes nothing.
//
// Never throws; time and memory are bounded by the limits on tokens, depth and steps.
#pragma once

#include <string>
#include <string_view>

#include "trainer/grading/algebra/expression.h"

namespace taopd {

// nullptr: not in the language, or too long, too deep or too ambiguous.
ExprPtr ParseLatex(std::string_view latex);

// Arithmetic as a program writes it: 12/5, 2*(3-1)^2, .5+1. nullptr when it is not that.
ExprPtr ParseArithmetic(std::string_view text);

}  // namespace taopd
