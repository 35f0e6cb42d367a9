// Names of symbols as latex2sympy2_extended makes them. Greek commands and letters get their
// English names, text loses its spaces and brackets, and everything is in lower case.
#pragma once

#include <string>
#include <string_view>

#include "trainer/grading/algebra/expression.h"

namespace taopd::grading::latex {

// Returns the name for an accent with its argument: "\text{ B }" -> "B", "\overline{AB}" ->
// "bar{AB}".
std::string AccentName(const std::string& token);

// Returns the symbol of that name, or the constant for pi and gamma. `real` is false in an answer
// about complex numbers (see kComplexMark).
ExprPtr SymbolOrConstant(const std::string& name, bool real);

// Returns whether an answer is about complex numbers. The signs are a lone i, \mathbb{C}, \det, a
// trace or a rank, and real and imaginary parts.
bool SpeaksOfComplexNumbers(std::string_view latex);

}  // namespace taopd::grading::latex
