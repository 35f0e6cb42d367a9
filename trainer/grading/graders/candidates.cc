#include "trainer/grading/graders/candidates.h"

#include <algorithm>
#include <array>
#include <optional>

#include "trainer/grading/text.h"

namespace taopd::grading {
namespace {

// ---- Numbers and arithmetic in plain text: 1,234.5, .5, 12%, $100, 3*(4+1)/2 ----

constexpr size_t kMaxArithmeticBytes = 400;

bool EqualsFollows(std::string_view text, size_t i) {
  i = SkipSpaces(text, i);
  return i < text.size() && text[i] == '=';
}

// Skips the required prefix of a number (the beginning of the text, a space or "=") and an optional
// "**". Returns the position after it, or kNone if the prefix is missing.
size_t SkipPrefix(std::string_view text, size_t start) {
  size_t i = start;
  if (i < text.size() && (IsSpace(text[i]) || text[i] == '=')) {
    ++i;
  } else if (i != 0) {
    return kNone;
  }
  return text.substr(i, 2) == "**" ? i + 2 : i;
}

// Returns the width in bytes of the character at i if it belongs to arithmetic (a digit, a space,
// one of .+-*/^() or the signs for times and divided by), else 0.
size_t ArithmeticWidth(std::string_view text, size_t i) {
  const char c = text[i];
  if (IsDigit(c) || IsSpace(c) || std::string_view(".+-*/^()").find(c) != kNone) return 1;
  const std::string_view two = text.substr(i, 2);
  return two == "\xC3\x97" || two == "\xC3\xB7" ? 2 : 0;
}
// The byte 0xC3 begins the signs for times and divided by.
bool IsOperator(std::string_view text, size_t i) {
  return std::string_view("+-*/^()\xC3").find(text[i]) != kNone;
}

// Returns whether a value may end at i: the text ends there, or a space or one of .,:)$ follows.
bool EndsValue(std::string_view text, size_t i) {
  return i >= text.size() || IsSpace(text[i]) || std::string_view(".,:)$").find(text[i]) != kNone;
}

// Returns whether arithmetic may end at i, possibly before "**".
bool EndsArithmetic(std::string_view text, size_t i) {
  return EndsValue(text, i) || (text.substr(i, 2) == "**" && EndsValue(text, i + 2));
}

// This and MatchPlainNumber match at `start`, which must be the beginning of the text, a space or
// "=". They return nullopt if nothing matches there. With `no_equals_after`, a match that is
// followed by "=" is shortened until it is not.
std::optional<Candidate> MatchPlainExpression(std::string_view text, size_t start,
                                              bool no_equals_after = false) {
  const size_t begin = SkipPrefix(text, start);
  if (begin == kNone) return std::nullopt;
  size_t i = begin;
  if (i < text.size() && text[i] == '-') ++i;
  if (i < text.size() && text[i] == '(') ++i;
  if (i < text.size() && text[i] == '-') ++i;
  if (i >= text.size() || !IsDigit(text[i])) return std::nullopt;
  const size_t digit = i;
  size_t run = digit + 1, first_operator = kNone;
  for (size_t width; run < text.size() && run - digit < kMaxArithmeticBytes &&
                     (width = ArithmeticWidth(text, run)) > 0;) {
    if (first_operator == kNone && IsOperator(text, run)) first_operator = run;
    run += width;
  }
  if (first_operator == kNone) return std::nullopt;
  // Take the longest text that is followed by a suffix and has an operator before its last
  // character.
  size_t end = run;
  for (; end > digit + 2; --end) {
    if (!EndsArithmetic(text, end)) continue;
    const size_t after = end < text.size() && EndsValue(text, end) ? end + 1 : end;
    if (no_equals_after && EqualsFollows(text, after)) continue;
    if (first_operator + 1 >= end) return std::nullopt;
    Candidate candidate;
    candidate.begin = start;
    candidate.end = after;
    candidate.arithmetic = text.substr(begin, end - begin);
    return candidate;
  }
  return std::nullopt;
}

size_t SkipCurrency(std::string_view text, size_t i) {
  static constexpr std::array<std::string_view, 6> kCurrencies = {"$",      "\u20AC", "\u00A3",
                                                                  "\u00A5", "\u20B9", "\u20BD"};
  for (const std::string_view currency : kCurrencies) {
    if (text.substr(i, currency.size()) == currency) return i + currency.size();
  }
  return i;
}

// For a number such as 1,234,567 or 1 234 567 with the first group [start, end), returns the end of
// each further group of three digits.
std::vector<size_t> GroupEnds(std::string_view text, size_t start, size_t end) {
  std::vector<size_t> ends;
  if (end == start || end - start > 3 || text[start] == '0') return ends;
  while (end + 3 < text.size() && (text[end] == ',' || text[end] == ' ') &&
         IsDigit(text[end + 1]) && IsDigit(text[end + 2]) && IsDigit(text[end + 3])) {
    end += 4;
    ends.push_back(end);
  }
  return ends;
}

std::optional<Candidate> MatchPlainNumber(std::string_view text, size_t start,
                                          bool no_equals_after = false) {
  size_t begin = SkipPrefix(text, start);
  if (begin == kNone) return std::nullopt;
  begin = SkipCurrency(text, begin);
  if (begin >= text.size() || (begin > 0 && IsDigit(text[begin - 1]))) return std::nullopt;
  const auto accept = [&](size_t end) -> std::optional<Candidate> {
    Candidate candidate;
    candidate.begin = start;
    candidate.number = text.substr(begin, end - begin);
    const size_t word = SkipSpaces(text, end);
    const size_t after = text.substr(word, 1) == "\\" ? word : latex::SkipPercentWord(text, word);
    candidate.percent = after > word;
    candidate.end = candidate.percent ? after : end;
    if (no_equals_after && EqualsFollows(text, candidate.end)) {
      if (!candidate.percent || EqualsFollows(text, end)) return std::nullopt;
      candidate.percent = false;
      candidate.end = end;
    }
    return candidate;
  };
  // The longest match that ends at or after `first`.
  const auto longest = [&](size_t first, size_t last) -> std::optional<Candidate> {
    for (size_t end = last; end >= first; --end) {
      if (auto candidate = accept(end)) return candidate;
    }
    return std::nullopt;
  };
  const auto digit_follows = [&](size_t i) { return i + 1 < text.size() && IsDigit(text[i + 1]); };
  const size_t sign = text[begin] == '-' ? begin + 1 : begin;
  const size_t whole = SkipDigits(text, sign);
  // 1,234,567.5
  const std::vector<size_t> ends = GroupEnds(text, sign, whole);
  for (size_t k = ends.size(); k-- > 0;) {
    if (ends[k] < text.size() && text[ends[k]] == '.') {
      if (auto candidate = longest(ends[k] + 2, SkipDigits(text, ends[k] + 1))) return candidate;
    }
    if (auto candidate = accept(ends[k])) return candidate;
  }
  // 12.5, 12,5
  if (whole > sign && digit_follows(whole) && (text[whole] == '.' || text[whole] == ',')) {
    if (auto candidate = longest(whole + 2, SkipDigits(text, whole + 1))) return candidate;
  }
  // .5
  if (text[begin] == '.' && digit_follows(begin)) {
    if (auto candidate = longest(begin + 2, SkipDigits(text, begin + 1))) return candidate;
  }
  return longest(sign + 1, whole);
}

// ---- The places of answers ----

// The largest number of characters between an anchor and its value, or the "is" or "=" before it.
constexpr int kMaxValueGap = 50, kMaxIsGap = 100;

// Returns the position after the UTF-8 character at i.
size_t NextCharacter(std::string_view text, size_t i) {
  ++i;
  while (i < text.size() && ContinuesCharacter(text[i])) ++i;
  return i;
}

// The groups of candidates.h.
enum class Group { kFinalAnswerIHope, kFinalAnswerIs, kAnswerColon, kAnswer, kAnywhere };
// In the order in which they are tried.
constexpr std::array kGroups = {Group::kFinalAnswerIHope, Group::kFinalAnswerIs,
                                Group::kAnswerColon, Group::kAnswer, Group::kAnywhere};

class GroupScan {
 public:
  GroupScan(std::string_view text, std::string_view lower)
      : text_(text), lower_(lower), environments_(text) {}

  std::vector<Candidate> Find(Group group) {
    switch (group) {
      case Group::kFinalAnswerIHope:
        for (const bool latex : {true, false})
          FindAfterAnchor("final answer", [&](size_t i) { return FinalAnswerIs(i, latex); });
        break;
      case Group::kFinalAnswerIs:
        for (const bool latex : {true, false})
          FindAfterAnchor("final answer", [&](size_t i) { return FinalAnswerJustIs(i, latex); });
        FindBoxed();
        break;
      case Group::kAnswerColon:
        FindAfter("answer:");
        break;
      case Group::kAnswer:
        FindAfter("answer");
        break;
      case Group::kAnywhere:
        FindEverywhere([&](size_t i) { return MatchLatex(i); });
        FindEverywhere([&](size_t i) { return MatchPlainExpression(text_, i); });
        FindEverywhere([&](size_t i) { return MatchPlainNumber(text_, i); });
        break;
    }
    // The rightmost end comes first, then the longest match. Ties keep the order of the patterns.
    std::ranges::stable_sort(found_, [](const Candidate& a, const Candidate& b) {
      return a.end != b.end ? a.end > b.end : a.begin < b.begin;
    });
    return std::move(found_);
  }

 private:
  template <typename Match>
  void FindEverywhere(const Match& match) {
    for (size_t i = 0; i < text_.size();) {
      std::optional<Candidate> candidate = match(i);
      i = candidate ? std::max(candidate->end, i + 1) : i + 1;
      if (candidate) found_.push_back(*std::move(candidate));
    }
  }

  template <typename Match>
  void FindAfterAnchor(std::string_view anchor, const Match& match) {
    for (size_t i = lower_.find(anchor); i != kNone;) {
      std::optional<Candidate> candidate = match(i);
      size_t next = i + 1;
      if (candidate) {
        candidate->begin = i;
        next = std::max(candidate->end, next);
        found_.push_back(*std::move(candidate));
      }
      i = lower_.find(anchor, next);
    }
  }

  void FindAfter(std::string_view anchor) {
    FindAfterAnchor(anchor, [&](size_t i) { return LatexAfter(i + anchor.size()); });
    FindAfterAnchor(anchor, [&](size_t i) { return NumberAfter(i + anchor.size()); });
  }

  std::optional<Candidate> MatchLatex(size_t i) {
    auto match = environments_.MatchAt(i);
    if (!match) return std::nullopt;
    Candidate candidate;
    candidate.begin = i;
    candidate.end = match->end;
    candidate.pieces = std::move(match->pieces);
    return candidate;
  }

  std::optional<Candidate> MatchPlain(size_t i, bool no_equals_after = false) const {
    if (auto candidate = MatchPlainExpression(text_, i, no_equals_after)) return candidate;
    return MatchPlainNumber(text_, i, no_equals_after);
  }

  // Matches at the end of the spaces that begin at i, or else at the last of them.
  template <typename Match>
  std::optional<Candidate> MatchAfterSpaces(size_t i, const Match& match) const {
    const size_t end = SkipSpaces(text_, i);
    std::optional<Candidate> candidate = match(end);
    if (!candidate && end > i) candidate = match(end - 1);
    return candidate;
  }

  // Matches the value after "is" or "is:", possibly after spaces. A plain number includes one of
  // the spaces.
  std::optional<Candidate> MatchValue(size_t i, bool latex, bool spaces_allowed) {
    const auto match = [&](size_t k) { return latex ? MatchLatex(k) : MatchPlain(k); };
    return spaces_allowed ? MatchAfterSpaces(i, match) : match(i);
  }

  std::optional<Candidate> FinalAnswerIs(size_t i, bool latex) {
    constexpr std::string_view kAnchor = "final answer is";
    if (lower_.substr(i, kAnchor.size()) != kAnchor) return std::nullopt;
    i += kAnchor.size();
    if (i < text_.size() && text_[i] == ':') ++i;
    auto candidate = MatchValue(i, latex, /*spaces_allowed=*/true);
    if (!candidate) return std::nullopt;
    size_t end = candidate->end;
    if (end < text_.size() && text_[end] == '.') ++end;
    end = SkipSpaces(text_, end);
    constexpr std::string_view kHope = "I hope";
    if (text_.substr(end, kHope.size()) != kHope) return std::nullopt;
    candidate->end = end + kHope.size();
    return candidate;
  }

  std::optional<Candidate> FinalAnswerJustIs(size_t i, bool latex) {
    i += std::string_view("final answer").size();
    for (int gap = 0; gap <= kMaxIsGap && i < text_.size(); ++gap, i = NextCharacter(text_, i)) {
      const size_t word = SkipSpaces(text_, i);
      if (word > i && lower_.substr(word, 2) == "is") {
        size_t after = word + 2;
        if (after < text_.size() && text_[after] == ':') ++after;
        if (auto candidate = MatchValue(after, latex, latex)) return candidate;
      }
      if (!latex && text_[i] == '\n') return std::nullopt;
    }
    return std::nullopt;
  }

  std::optional<Candidate> LatexAfter(size_t i) {
    for (int gap = 0; gap <= kMaxValueGap && i <= text_.size();
         ++gap, i = NextCharacter(text_, i)) {
      if (auto candidate = MatchLatex(i)) return candidate;
    }
    return std::nullopt;
  }

  std::optional<Candidate> NumberAfter(size_t start) {
    // First choice: the last "=" within kMaxIsGap characters that a number follows.
    std::vector<size_t> equals;
    size_t i = start;
    for (int gap = 0; gap <= kMaxIsGap && i < text_.size(); ++gap, i = NextCharacter(text_, i)) {
      if (text_[i] == '=') equals.push_back(i);
      if (text_[i] == '\n') break;
    }
    for (auto at = equals.rbegin(); at != equals.rend(); ++at) {
      const auto match = [&](size_t k) { return MatchPlain(k, /*no_equals_after=*/true); };
      if (auto candidate = MatchAfterSpaces(*at + 1, match)) return candidate;
    }
    // Otherwise: the first number within kMaxValueGap characters.
    i = start;
    for (int gap = 0; gap <= kMaxValueGap && i < text_.size(); ++gap, i = NextCharacter(text_, i)) {
      if (auto candidate = MatchPlain(i, /*no_equals_after=*/true)) return candidate;
      if (text_[i] == '\n') break;
    }
    return std::nullopt;
  }

  void FindBoxed() {
    constexpr std::string_view kBoxed = "\\boxed{";
    const size_t begin = text_.find(kBoxed);
    const size_t end = text_.rfind('}');
    if (begin == kNone || end == kNone || end <= begin + kBoxed.size()) return;
    Candidate candidate;
    candidate.begin = begin;
    candidate.end = end + 1;
    candidate.pieces.push_back({.text = text_.substr(begin, end + 1 - begin), .boxed = true});
    found_.push_back(std::move(candidate));
  }

  const std::string_view text_, lower_;
  latex::Environments environments_;
  std::vector<Candidate> found_;
};

}  // namespace

CandidateFinder::CandidateFinder(std::string_view text) : text_(text), lower_(LowerCase(text)) {}

std::vector<Candidate> CandidateFinder::NextGroup() {
  while (next_ < kGroups.size()) {
    std::vector<Candidate> candidates = GroupScan(text_, lower_).Find(kGroups[next_++]);
    if (!candidates.empty()) return candidates;
  }
  return {};
}

}  // namespace taopd::grading
