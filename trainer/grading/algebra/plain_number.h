// Numbers and arithmetic in plain text: 1,234.5, .5, 12%, $100, 3*(4+1)/2.
#pragma once

#include <optional>
#include <string_view>

#include "trainer/grading/graders/candidates.h"

namespace taopd {

// What begins at `start` (the begin of the text, a space or "=", then the number).
// `no_equals_after`: it must not be followed by "=", and is shortened until it is not.
std::optional<Candidate> MatchPlainExpression(std::string_view text, size_t start,
                                              bool no_equals_after);
std::optional<Candidate> MatchPlainNumber(std::string_view text, size_t start,
                                          bool no_equals_after);

}  // namespace taopd
