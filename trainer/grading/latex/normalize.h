// Makes the LaTeX of an answer regular before it is parsed, as latex2sympy2_extended 1.11 does for
// math-verify: it opens boxes, drops units and decoration, and completes shorthand such as \frac12.
#pragma once

#include <string>
#include <string_view>

#include "trainer/grading/latex/boxed.h"

namespace taopd::grading::latex {

// Runs in time linear in the text (a constant number of passes). `mode` selects the boxes that
// count.
std::string Normalize(std::string_view text, BoxedMode mode);

}  // namespace taopd::grading::latex
