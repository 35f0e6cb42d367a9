// The parts of Unicode that tokenizers need, on top of ICU: repair of UTF-8, NFC, and the character
// classes of the pre-tokenizers' patterns. Where ICU's version of Unicode differs from that of HF
// tokenizers, the functions follow HF (unicode_versions.h). All functions are thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace taopd {

bool IsValidUtf8(std::string_view text);
// Replaces each maximal part of an ill-formed sequence by one U+FFFD, as the W3C and Rust's
// from_utf8_lossy do.
std::string RepairUtf8(std::string_view text);
// Returns the number of bytes, 0 to 3, at the end of the text that begin a UTF-8 character without
// completing it.
size_t IncompleteSuffixBytes(std::string_view text);

// Canonical composition, in linear time. REQUIRES: text is valid UTF-8.
std::string NormalizeNfc(std::string_view text);

enum class CharClass : uint8_t {
  kLetter,   // \p{L}
  kNumber,   // \p{N}
  kNewline,  // [\r\n]
  kSpace,    // any other \s
  kOther,    // any other character
  kEnd,      // the end of the text
};

struct Char {
  CharClass char_class;
  uint8_t size_bytes;
};

inline constexpr std::array<CharClass, 128> kAsciiClasses = [] {
  std::array<CharClass, 128> classes{};
  for (int c = 0; c < 128; ++c) {
    classes[c] = CharClass::kOther;
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) classes[c] = CharClass::kLetter;
    if (c >= '0' && c <= '9') classes[c] = CharClass::kNumber;
    if (c == ' ' || c == '\t' || c == '\v' || c == '\f') classes[c] = CharClass::kSpace;
    if (c == '\r' || c == '\n') classes[c] = CharClass::kNewline;
  }
  return classes;
}();
// REQUIRES: the character at the position is not of ASCII.
Char NonAsciiCharAt(std::string_view text, size_t position);

// Returns the character at a byte position, or kEnd at text.size(). REQUIRES: text is valid UTF-8.
inline Char CharAt(std::string_view text, size_t position) {
  if (position >= text.size()) return {CharClass::kEnd, 0};
  const auto lead = static_cast<uint8_t>(text[position]);
  return lead < 128 ? Char{kAsciiClasses[lead], 1} : NonAsciiCharAt(text, position);
}

// These functions implement \s and \w of Rust's regex, for the options of added tokens.
bool IsWhiteSpace(char32_t c);
bool IsWordCharacter(char32_t c);
// These functions return the first and the last code point, and their sizes unless `size_bytes` is
// null. REQUIRES: text is valid UTF-8 and not empty.
char32_t FirstCodePoint(std::string_view text, size_t* size_bytes = nullptr);
char32_t LastCodePoint(std::string_view text, size_t* size_bytes = nullptr);
// REQUIRES: text is valid UTF-8.
int64_t NumCodePoints(std::string_view text);

void AppendUtf8(char32_t c, std::string* text);

}  // namespace taopd
