// One place in a response where an answer may stand.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "trainer/grading/latex/environment.h"

namespace taopd::grading {

// [begin, end) is the place. Exactly one of `pieces`, `arithmetic` and `number` is not empty; all
// of them are views into the response.
struct Candidate {
  size_t begin = 0, end = 0;
  // LaTeX: one piece, or several joined by "and", "or" or commas.
  std::vector<latex::Piece> pieces;
  // An expression with operators in plain text.
  std::string_view arithmetic;
  std::string_view number;
  // A percent sign or word follows `number`.
  bool percent = false;
};

}  // namespace taopd::grading
