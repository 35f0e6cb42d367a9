// Extracts the content of \boxed{...} and \fbox{...}.
#pragma once

#include <string>
#include <string_view>

namespace taopd::grading::latex {

enum class BoxedMode {
  // The last box and the boxes directly before it.
  kLast,
  // Every box.
  kAll,
};

// Returns the content of the boxes, joined by commas, or the whole text if it has no box.
std::string BoxedContent(std::string_view text, BoxedMode mode);

}  // namespace taopd::grading::latex
