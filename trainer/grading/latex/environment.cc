#include "trainer/grading/latex/environment.h"

#include <algorithm>

#include "trainer/grading/text.h"

namespace taopd::grading::latex {
namespace {

bool IsEscaped(std::string_view text, size_t i) { return i > 0 && text[i - 1] == '\\'; }

// Returns the end of -?\d+([.,]\d+)? at i, or kNone if there is no match.
size_t SimpleNumber(std::string_view text, size_t i) {
  if (i < text.size() && text[i] == '-') ++i;
  const size_t first = i;
  i = SkipDigits(text, i);
  if (i == first) return kNone;
  if (i + 1 < text.size() && (text[i] == '.' || text[i] == ',') && IsDigit(text[i + 1])) {
    return SkipDigits(text, i + 1);
  }
  return i;
}

// Returns the end of {number} at i, or kNone if there is no match.
size_t BracedNumber(std::string_view text, size_t i) {
  if (i >= text.size() || text[i] != '{') return kNone;
  const size_t end = SimpleNumber(text, i + 1);
  return end != kNone && end < text.size() && text[end] == '}' ? end + 1 : kNone;
}

}  // namespace

size_t NextOccurrence::From(size_t start) {
  if (known_from_ != kNone && start < known_from_) {
    const size_t closer = text_.substr(0, std::min(text_.size(), known_from_ + needle_.size() - 1))
                              .find(needle_, start);
    if (closer != kNone) found_ = closer;
    known_from_ = start;
  } else if (known_from_ == kNone || (found_ != kNone && start > found_)) {
    found_ = text_.find(needle_, start);
    known_from_ = start;
  }
  return found_;
}

size_t SkipPercentWord(std::string_view text, size_t start) {
  if (text.substr(start, 2) == "\\%") return start + 2;
  if (text.substr(start, 1) == "%") return start + 1;
  for (const std::string_view word : {"ercentage", "ercent", "ct"}) {
    // math-verify tries "percent" before "percentage" and leaves "age" over, which nothing reads.
    if (start < text.size() && (text[start] == 'p' || text[start] == 'P') &&
        text.substr(start + 1, word.size()) == word) {
      return start + 1 + (word == "ercentage" ? 6 : word.size());
    }
  }
  return start;
}

std::optional<size_t> Environments::MatchDelimited(size_t start, Piece* piece) {
  const auto take = [&](size_t open, size_t close, size_t width) -> std::optional<size_t> {
    if (close == kNone || close <= open) return std::nullopt;
    piece->text = text_.substr(open, close - open);
    return close + width;
  };
  const char c = text_[start];
  const char next = start + 1 < text_.size() ? text_[start + 1] : '\0';
  if (c == '$' && !IsEscaped(text_, start)) {
    if (next == '$') {
      const size_t close = double_dollar_.From(start + 2);
      if (close != kNone && !IsEscaped(text_, close)) {
        if (auto end = take(start + 2, close, 2)) return end;
      }
    }
    if (start > 0 && IsDigit(text_[start - 1])) return std::nullopt;
    for (size_t i = start + 1; i < text_.size() && text_[i] != '\n'; ++i) {
      if (text_[i] == '$' && text_[i - 1] != '\\') return take(start + 1, i, 1);
    }
    return std::nullopt;
  }
  if (c == '\\' && next == '[' && !IsEscaped(text_, start)) {
    const size_t close = bracket_.From(start + 2);
    return close != kNone && !IsEscaped(text_, close) ? take(start + 2, close, 2) : std::nullopt;
  }
  if (c == '\\' && next == '(' && !IsEscaped(text_, start)) {
    const size_t close = parenthesis_.From(start + 2);
    if (close == kNone || IsEscaped(text_, close) || newline_.From(start + 2) < close)
      return std::nullopt;
    return take(start + 2, close, 2);
  }
  if (IsSpace(c) && next == '[') {
    const size_t close = square_.From(start + 2);
    if (close == kNone || close + 1 >= text_.size() || !IsSpace(text_[close + 1]))
      return std::nullopt;
    if (newline_.From(start + 2) < close) return std::nullopt;
    if (text_.substr(start + 2, close - start - 2).find('[') != kNone) return std::nullopt;
    return take(start + 2, close, 2);
  }
  return std::nullopt;
}

std::optional<size_t> Environments::MatchOne(size_t start, Piece* piece) {
  if (start >= text_.size()) return std::nullopt;
  std::optional<size_t> end = MatchDelimited(start, piece);
  if (!end) {
    const size_t command = text_[start] == '-' ? start + 1 : start;
    if (text_.substr(command, 5) != "\\frac") return std::nullopt;
    const size_t top = BracedNumber(text_, command + 5);
    const size_t bottom = top == kNone ? kNone : BracedNumber(text_, top);
    if (bottom == kNone) return std::nullopt;
    piece->text = text_.substr(start, bottom - start);
    end = bottom;
  }
  const size_t word = SkipSpaces(text_, *end);
  const size_t after = SkipPercentWord(text_, word);
  piece->percent = after > word;
  return after;
}

std::optional<Match> Environments::MatchAt(size_t start) {
  Match match;
  Piece piece;
  std::optional<size_t> end = MatchOne(start, &piece);
  if (!end) return std::nullopt;
  match.pieces.push_back(piece);
  match.end = *end;
  for (int more = 0; more < 5; ++more) {
    const size_t word = SkipSpaces(text_, match.end);
    size_t after = kNone;
    for (const std::string_view joint : {",and", "and", ",or", "or", ","}) {
      if (text_.substr(word, joint.size()) == joint) {
        after = word + joint.size();
        break;
      }
    }
    if (after == kNone) break;
    const size_t next = SkipSpaces(text_, after);
    piece = {};
    end = MatchOne(next, &piece);
    // [ ... ] includes the space before it.
    if (!end && next > after) end = MatchOne(next - 1, &piece);
    if (!end) break;
    match.pieces.push_back(piece);
    match.end = *end;
  }
  return match;
}

}  // namespace taopd::grading::latex
