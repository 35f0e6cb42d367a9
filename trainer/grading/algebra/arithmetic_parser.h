// Reads arithmetic as a program writes it, with Python's precedences: 12/5, 2*(3-1)^2, .5+1.
#pragma once

#include <string_view>

#include "trainer/grading/algebra/expression.h"

namespace taopd::grading {

// Returns nullptr if the text is not arithmetic, or is too long or too deep.
ExprPtr ParseArithmetic(std::string_view text);

}  // namespace taopd::grading
