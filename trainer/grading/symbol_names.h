// Names of symbols as latex2sympy2_extended makes them: Greek commands and letters by their English name,
// text without spaces and brackets, everything in lower case.
#pragma once

#include <string>

#include "trainer/grading/expression.h"

namespace taopd {

// "\text{ B }" -> "B", "\overline{AB}" -> "bar{AB}".
std::string AccentName(const std::string& token);

// The symbol of that name; pi and gamma are constants.
ExprPtr SymbolOrConstant(const std::string& name);

}  // namespace taopd
