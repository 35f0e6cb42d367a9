// Where in a response an answer may stand, as math-verify 0.9 looks for it with its default targets
// (LaTeX, then plain numbers and arithmetic). Places come in groups of falling priority:
//     0  "final answer is ... I hope"      50  "final answer ... is", and everything between the
//     first
//   100  "answer: ..."                         \boxed{ and the last }
//   200  "answer ..."                     300  any LaTeX, any number
// and within a group from the right end of the response to the left.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trainer/grading/algebra/expression.h"

namespace taopd {

struct LatexPiece {
  std::string_view text;
  bool percent = false;  // followed by % or "percent"
  bool boxed = false;    // found by its \boxed, not by $...$
};

struct Candidate {
  size_t begin = 0, end = 0;
  std::vector<LatexPiece> latex;  // one, or several joined by "and", "or" or commas
  std::string_view arithmetic;    // plain text: an expression with operators,
  std::string_view number;        // or a number
  bool percent = false;           // of the number
};

// Candidates by group, each group in the order in which they are to be tried. Groups without any
// are left out. The views point into `text`.
class CandidateFinder {
 public:
  explicit CandidateFinder(std::string_view text);

  // The next group, or empty when all are done.
  std::vector<Candidate> NextGroup();

 private:
  std::vector<Candidate> Group(int priority) const;
  std::string_view text_;
  std::string lower_;
  int next_ = 0;
};

}  // namespace taopd
