// Finds $...$, $$...$$, \(...\), \[...\], [ ... ] and bare \frac{1}{2} in text, in linear time over
// a whole scan.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "trainer/grading/graders/candidates.h"

namespace taopd {

// find(needle, from) that remembers its last answer, so that a scan from left to right costs one
// pass.
class NextOccurrence {
 public:
  NextOccurrence(std::string_view text, std::string_view needle) : text_(text), needle_(needle) {}
  size_t From(size_t start);

 private:
  std::string_view text_, needle_;
  size_t known_from_ = std::string_view::npos, found_ = std::string_view::npos;
};

struct LatexMatch {
  size_t end = 0;
  std::vector<LatexPiece> pieces;
};

class LatexEnvironments {
 public:
  explicit LatexEnvironments(std::string_view text);

  // An environment that begins exactly at `start`, and up to five more joined to it by commas,
  // "and", "or".
  std::optional<LatexMatch> MatchAt(size_t start);

 private:
  std::optional<size_t> One(size_t start, LatexPiece* piece);
  std::optional<size_t> Delimited(size_t start, LatexPiece* piece);

  std::string_view text_;
  NextOccurrence double_dollar_, bracket_, parenthesis_, newline_, square_;
};

// The end of a % or "percent" at `start`, or `start`.
size_t SkipPercentWord(std::string_view text, size_t start);

}  // namespace taopd
