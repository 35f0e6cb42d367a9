// Finds the places in a response where an answer may stand, as math-verify 0.9 does with its
// default targets (LaTeX, then plain numbers and arithmetic). The places form groups, which are
// tried in this order:
//
//   "final answer is ... I hope"
//   "final answer ... is", and everything between the first \boxed{ and the last }
//   "answer: ..."
//   "answer ..."
//   any LaTeX and any number
//
// Within a group the places are tried from right to left.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/grading/latex/environment.h"

namespace taopd::grading {

// The place [begin, end) in a response, where an answer may stand. Exactly one of `pieces`,
// `arithmetic` and `number` is not empty; all of them are views into the response.
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

// Makes one pass over a text. Not thread-safe.
class CandidateFinder {
 public:
  // The candidates are views into `text`, which must outlive the finder and its results.
  explicit CandidateFinder(std::string_view text);

  // Returns the next group that has candidates, in the order in which they are to be tried. Returns
  // an empty vector after the last group.
  std::vector<Candidate> NextGroup();

 private:
  std::string_view text_;
  std::string lower_;
  size_t next_ = 0;  // number of groups that were returned or had no candidates
};

}  // namespace taopd::grading
