// Finds numbers and arithmetic in plain text: 1,234.5, .5, 12%, $100, 3*(4+1)/2.
#pragma once

#include <optional>
#include <string_view>

#include "trainer/grading/graders/candidate.h"

namespace taopd::grading {

// Both functions match at `start`, which must be the beginning of the text, a space or "=". They
// return nullopt if nothing matches there. With `no_equals_after`, a match that is followed by "="
// is shortened until it is not.
std::optional<Candidate> MatchPlainExpression(std::string_view text, size_t start,
                                              bool no_equals_after);
std::optional<Candidate> MatchPlainNumber(std::string_view text, size_t start,
                                          bool no_equals_after);

}  // namespace taopd::grading
