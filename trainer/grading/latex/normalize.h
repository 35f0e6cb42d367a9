// Makes the LaTeX of an answer regular before it is parsed, as latex2sympy2_extended 1.11 does for
// math-verify: it opens boxes, drops units and decoration, and completes shorthand such as \frac12.
#pragma once

#include <string>
#include <string_view>

namespace taopd::grading::latex {

// Selects boxes: \boxed{...} and \fbox{...}.
enum class BoxedMode {
  // The last box and the boxes directly before it.
  kLast,
  // Every box.
  kAll,
};

// Returns the content of the boxes, joined by commas, or the whole text if it has no box.
std::string BoxedContent(std::string_view text, BoxedMode mode);

// Runs in time linear in the text (a constant number of passes). `mode` selects the boxes that
// count.
std::string Normalize(std::string_view text, BoxedMode mode);

}  // namespace taopd::grading::latex
