// LaTeX of an answer made regular before parsing, as latex2sympy2_extended 1.11 does for
// math-verify: boxes opened, units and decoration dropped, shorthand such as \frac12 completed.
#pragma once

#include <string>
#include <string_view>

namespace taopd {

// kLast: the last box, with those that stand directly before it; kAll: every box, joined by commas.
enum class BoxedMode { kLast, kAll };

// The content of the boxes; the whole text where there is none.
std::string BoxedContent(std::string_view text, BoxedMode mode);

// Linear in the text but for a constant number of passes.
std::string NormalizeLatex(std::string_view text, BoxedMode mode);

}  // namespace taopd
