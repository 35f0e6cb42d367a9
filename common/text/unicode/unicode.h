// The parts of Unicode that tokenizers need, on top of ICU: repair of UTF-8, NFC, and the character
// classes of the pre-tokenizers' patterns. Where ICU's version of Unicode differs from that of HF
// tokenizers, the functions follow HF (unicode_versions.h). All functions are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace taopd {

bool IsValidUtf8(std::string_view text);
// Replaces each maximal part of an ill-formed sequence by one U+FFFD, as the W3C and Rust's
// from_utf8_lossy do.
std::string RepairUtf8(std::string_view text);

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

// Returns the character at a byte position, or kEnd at text.size(). REQUIRES: text is valid UTF-8.
Char CharAt(std::string_view text, size_t position);

// These functions implement \s and \w of Rust's regex, for the options of added tokens.
bool IsWhiteSpace(char32_t c);
bool IsWordCharacter(char32_t c);
// These functions return the first and the last code point, and their sizes. REQUIRES: text is
// valid UTF-8 and not empty.
char32_t FirstCodePoint(std::string_view text, size_t* size_bytes);
char32_t LastCodePoint(std::string_view text, size_t* size_bytes);

void AppendUtf8(char32_t c, std::string* text);

}  // namespace taopd
