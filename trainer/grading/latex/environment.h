// Finds $...$, $$...$$, \(...\), \[...\], [ ... ] and bare \frac{1}{2} in text. A scan over the
// whole text takes linear time.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

namespace taopd::grading::latex {

// A stretch of LaTeX in a text, without its delimiters.
struct Piece {
  std::string_view text;
  // A percent sign or word follows.
  bool percent = false;
  // It was found by its \boxed and not by delimiters.
  bool boxed = false;
};

// A text.find(needle, start) that remembers its last result, so that a scan from left to right
// costs one pass.
class NextOccurrence {
 public:
  NextOccurrence(std::string_view text, std::string_view needle) : text_(text), needle_(needle) {}
  size_t From(size_t start);

 private:
  std::string_view text_, needle_;
  size_t known_from_ = std::string_view::npos, found_ = std::string_view::npos;
};

struct Match {
  // The position after the last piece.
  size_t end = 0;
  std::vector<Piece> pieces;
};

// Not thread-safe. The matches are views into the text.
class Environments {
 public:
  explicit Environments(std::string_view text) : text_(text) {}

  // Matches an environment that begins exactly at `start`, and up to five more that commas, "and"
  // or "or" join to it.
  std::optional<Match> MatchAt(size_t start);

 private:
  std::optional<size_t> MatchOne(size_t start, Piece* piece);
  std::optional<size_t> MatchDelimited(size_t start, Piece* piece);

  std::string_view text_;
  NextOccurrence double_dollar_{text_, "$$"}, bracket_{text_, "\\]"}, parenthesis_{text_, "\\)"};
  NextOccurrence newline_{text_, "\n"}, square_{text_, "]"};
};

// Returns the position after the % or "percent" at `start`, or `start` if there is none.
size_t SkipPercentWord(std::string_view text, size_t start);

}  // namespace taopd::grading::latex
