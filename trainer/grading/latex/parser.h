// Reads an answer in normalized LaTeX (normalize.h) as a tree. The language, its precedences and
// its oddities are those of latex2sympy2_extended 1.11, which reads answers for math-verify 0.9:
//   - "2\frac{1}{2}" is a mixed number.
//   - "1,234" is a number, and "1,2" is a set.
//   - "(1,2)" is an open interval.
//   - "f(x)" is a call.
//   - "\log" has base 10.
//   - A degree sign and a number's subscript change nothing.
#pragma once

#include <string_view>

#include "trainer/grading/algebra/expression.h"

namespace taopd::grading::latex {

// Returns nullptr if the text is not in the language, is too long or too deep, or needs too many
// steps. Never throws. The limits on tokens, depth and steps bound the time and the memory.
ExprPtr Parse(std::string_view latex);

}  // namespace taopd::grading::latex
