#include "trainer/grading/graders/plain_number.h"

#include <algorithm>
#include <array>

#include "trainer/grading/latex/environment.h"
#include "trainer/grading/text.h"

namespace taopd::grading {
namespace {

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

// Returns whether a valid end of arithmetic is at i, possibly after "**".
bool SuffixAt(std::string_view text, size_t i) {
  if (text.substr(i, 2) == "**") {
    const size_t after = i + 2;
    if (after >= text.size() || IsSpace(text[after]) ||
        std::string_view(".,:)$").find(text[after]) != kNone)
      return true;
  }
  return i >= text.size() || IsSpace(text[i]) || std::string_view(".,:)$").find(text[i]) != kNone;
}

}  // namespace

std::optional<Candidate> MatchPlainExpression(std::string_view text, size_t start,
                                              bool no_equals_after) {
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
    if (!SuffixAt(text, end)) continue;
    size_t after = end;
    if (after < text.size() && (text[after] == '.' || text[after] == ',' || text[after] == ':' ||
                                text[after] == ')' || text[after] == '$' || IsSpace(text[after]))) {
      ++after;
    }
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

std::optional<Candidate> MatchPlainNumber(std::string_view text, size_t start,
                                          bool no_equals_after) {
  size_t begin = SkipPrefix(text, start);
  if (begin == kNone || begin >= text.size()) return std::nullopt;
  static constexpr std::array<std::string_view, 6> kCurrencies = {"$",      "\u20AC", "\u00A3",
                                                                  "\u00A5", "\u20B9", "\u20BD"};
  for (const std::string_view currency : kCurrencies) {
    if (text.substr(begin, currency.size()) == currency) {
      begin += currency.size();
      break;
    }
  }
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
  const size_t sign = text[begin] == '-' ? begin + 1 : begin;
  const size_t whole = SkipDigits(text, sign);
  // 1,234,567.5 or 1 234 567
  if (whole > sign && whole - sign <= 3 && text[sign] != '0') {
    std::vector<size_t> ends;
    size_t i = whole;
    while (i + 3 < text.size() && (text[i] == ',' || text[i] == ' ') && IsDigit(text[i + 1]) &&
           IsDigit(text[i + 2]) && IsDigit(text[i + 3])) {
      i += 4;
      ends.push_back(i);
    }
    for (size_t k = ends.size(); k-- > 0;) {
      const size_t decimals =
          ends[k] < text.size() && text[ends[k]] == '.' ? SkipDigits(text, ends[k] + 1) : ends[k];
      for (size_t end = decimals; end > ends[k] + 1; --end) {
        if (auto candidate = accept(end)) return candidate;
        if (!no_equals_after) break;
      }
      if (auto candidate = accept(ends[k])) return candidate;
    }
  }
  // 12.5, 12,5
  if (whole > sign && whole + 1 < text.size() && (text[whole] == '.' || text[whole] == ',') &&
      IsDigit(text[whole + 1])) {
    for (size_t end = SkipDigits(text, whole + 1); end > whole + 1; --end) {
      if (auto candidate = accept(end)) return candidate;
    }
  }
  // .5
  if (text[begin] == '.' && begin + 1 < text.size() && IsDigit(text[begin + 1])) {
    for (size_t end = SkipDigits(text, begin + 1); end > begin + 1; --end) {
      if (auto candidate = accept(end)) return candidate;
    }
  }
  for (size_t end = whole; end > sign; --end) {
    if (auto candidate = accept(end)) return candidate;
  }
  return std::nullopt;
}

}  // namespace taopd::grading
