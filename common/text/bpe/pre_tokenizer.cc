#include "common/text/bpe/pre_tokenizer.h"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "common/text/unicode/unicode.h"

namespace taopd {
namespace {

constexpr std::array<std::pair<std::string_view, SplitPattern>, 3> kKnownPatterns = {{
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     SplitPattern::kGpt2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitPattern::kQwen2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitPattern::kLlama3},
}};

// Returns the end of the run of one class that begins at `position`.
size_t EndOfRun(std::string_view text, size_t position, CharClass char_class) {
  for (;;) {
    const Char c = CharAt(text, position);
    if (c.char_class != char_class) return position;
    position += c.size_bytes;
  }
}

// Returns the number of ASCII letters at the beginning of the eight bytes.
inline size_t LeadingLetters(uint64_t bytes) {
  constexpr uint64_t kEach = 0x0101010101010101u;
  // Folds case and clears the top bits, so that no sum carries into the next byte. The top bit of a
  // sum is set for bytes from 'a' on, and in the other sum for bytes after 'z'.
  const uint64_t folded = (bytes | 0x20 * kEach) & 0x7F * kEach;
  const uint64_t letters =
      (folded + (0x80 - 'a') * kEach) & ~(folded + (0x7F - 'z') * kEach) & ~bytes & 0x80 * kEach;
  const uint64_t others = letters ^ 0x80 * kEach;
  return (std::endian::native == std::endian::little ? std::countr_zero(others)
                                                     : std::countl_zero(others)) /
         8;
}

// EndOfRun for letters. Most words are shorter than eight bytes, so one step replaces a loop whose
// end no processor predicts.
size_t EndOfLetters(std::string_view text, size_t position) {
  while (position + 8 <= text.size()) {
    uint64_t bytes;
    std::memcpy(&bytes, text.data() + position, 8);
    const size_t num_letters = LeadingLetters(bytes);
    position += num_letters;
    if (num_letters == 8) continue;
    if (static_cast<uint8_t>(text[position]) < 128) return position;
    break;
  }
  return EndOfRun(text, position, CharClass::kLetter);
}

bool IsSpace(CharClass c) { return c == CharClass::kSpace || c == CharClass::kNewline; }

// Returns the size of 's 't 're 've 'm 'll 'd at the start of the text, or 0 if there is none.
size_t ContractionBytes(std::string_view text, bool ignore_case) {
  if (text[0] != '\'') return 0;
  auto letter = [&](size_t i) -> char {
    if (i >= text.size()) return '\0';
    return ignore_case && text[i] >= 'A' && text[i] <= 'Z' ? static_cast<char>(text[i] + 32)
                                                           : text[i];
  };
  const char first = letter(1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  const char second = letter(2);
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
      (first == 'l' && second == 'l')) {
    return 3;
  }
  // U+017F, the long s, is an s to a pattern that ignores case.
  if (ignore_case && text.substr(1, 2) == "\xC5\xBF") return 3;
  return 0;
}

// Returns the size of a run of white space at the start of the text: up to its end if the text ends
// there, otherwise without its last character, which may begin the next piece: \s+(?!\S)|\s+. With
// `cut_at_newline`, the run ends at its last CR or LF if there is one: \s*[\r\n]+.
size_t WhiteSpaceBytes(std::string_view text, bool cut_at_newline) {
  size_t end = 0, last_begin = 0, newline_end = 0;
  Char c = CharAt(text, 0);
  for (; IsSpace(c.char_class); c = CharAt(text, end)) {
    last_begin = end;
    end += c.size_bytes;
    if (c.char_class == CharClass::kNewline) newline_end = end;
  }
  if (cut_at_newline && newline_end > 0) return newline_end;
  if (c.char_class == CharClass::kEnd || last_begin == 0) return end;
  return last_begin;
}

size_t Gpt2PieceBytes(std::string_view text) {
  if (const size_t size = ContractionBytes(text, /*ignore_case=*/false); size > 0) return size;
  const size_t begin = text[0] == ' ' ? 1 : 0;
  const CharClass char_class = CharAt(text, begin).char_class;
  if (IsSpace(char_class) || char_class == CharClass::kEnd) {
    return WhiteSpaceBytes(text, /*cut_at_newline=*/false);
  }
  if (char_class == CharClass::kLetter) return EndOfLetters(text, begin);
  return EndOfRun(text, begin, char_class);
}

size_t Qwen2PieceBytes(std::string_view text, int max_digits) {
  if (const size_t size = ContractionBytes(text, /*ignore_case=*/true); size > 0) return size;
  const Char first = CharAt(text, 0);
  if (first.char_class == CharClass::kLetter) return EndOfLetters(text, 0);
  if (first.char_class == CharClass::kNumber) {
    size_t end = first.size_bytes;
    for (int num_digits = 1; num_digits < max_digits; ++num_digits) {
      const Char next = CharAt(text, end);
      if (next.char_class != CharClass::kNumber) break;
      end += next.size_bytes;
    }
    return end;
  }
  // Any single character except CR and LF may precede a word.
  if (first.char_class != CharClass::kNewline &&
      CharAt(text, first.size_bytes).char_class == CharClass::kLetter) {
    return EndOfLetters(text, first.size_bytes);
  }
  const size_t begin = text[0] == ' ' ? 1 : 0;
  if (const size_t end = EndOfRun(text, begin, CharClass::kOther); end > begin) {
    return EndOfRun(text, end, CharClass::kNewline);
  }
  return WhiteSpaceBytes(text, /*cut_at_newline=*/true);
}

}  // namespace

std::optional<SplitPattern> SplitPatternFromRegex(std::string_view regex) {
  for (const auto& [text, pattern] : kKnownPatterns) {
    if (text == regex) return pattern;
  }
  return std::nullopt;
}

size_t FirstPieceBytes(SplitPattern pattern, std::string_view text) {
  switch (pattern) {
    case SplitPattern::kGpt2:
      return Gpt2PieceBytes(text);
    case SplitPattern::kQwen2:
      return Qwen2PieceBytes(text, 1);
    case SplitPattern::kLlama3:
      return Qwen2PieceBytes(text, 3);
  }
  return text.size();
}

}  // namespace taopd
