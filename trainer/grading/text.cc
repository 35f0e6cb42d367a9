#include "trainer/grading/text.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_replace.h>
#include <re2/re2.h>

#include <algorithm>

namespace taopd::grading {
namespace {

// Debian's absl::string_view is not std's.
absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

size_t SkipSpaces(std::string_view text, size_t i) {
  while (i < text.size() && IsSpace(text[i])) ++i;
  return i;
}

size_t SkipDigits(std::string_view text, size_t i) {
  while (i < text.size() && IsDigit(text[i])) ++i;
  return i;
}

std::string Stripped(std::string_view text) {
  return std::string(absl::StripAsciiWhitespace(View(text)));
}

void ReplaceAll(std::string* text, std::string_view from, std::string_view to) {
  absl::StrReplaceAll({{View(from), View(to)}}, text);
}

std::string LowerCase(std::string_view text) { return absl::AsciiStrToLower(View(text)); }

size_t NumCharacters(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return !ContinuesCharacter(c); }));
}

std::optional<std::string> LastMatch(std::string_view text, const RE2& pattern) {
  re2::StringPiece rest(text.data(), text.size());
  std::optional<std::string> last;
  for (std::string found; RE2::FindAndConsume(&rest, pattern, &found);) last = found;
  return last;
}

}  // namespace taopd::grading
