// What the tokenizer needs of Unicode, over ICU: UTF-8 repair, NFC, and the three character classes
// of the pre-tokenizers' patterns. Where ICU's version of Unicode differs from that of HF
// tokenizers, HF's is followed (unicode_versions.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace taopd {

bool IsValidUtf8(std::string_view text);
// Each maximal part of an ill-formed sequence becomes one U+FFFD (the W3C's practice, which Rust's
// from_utf8_lossy follows too).
std::string RepairUtf8(std::string_view text);

// Canonical composition, in linear time. REQUIRES: valid UTF-8.
std::string NormalizeNfc(std::string_view text);

enum class CharClass : uint8_t { kLetter, kNumber, kNewline, kSpace, kOther, kEnd };

struct Char {
  CharClass char_class;  // \p{L}, \p{N}, [\r\n], other \s, anything else, or the end of the text
  uint8_t size_bytes;
};

// The character at a byte position, kEnd at text.size(). REQUIRES: valid UTF-8.
Char CharAt(std::string_view text, size_t position);

// Rust's regex \s and \w, for the options of added tokens.
bool IsWhiteSpace(char32_t c);
bool IsWordCharacter(char32_t c);
// First and last code point. REQUIRES: text is valid UTF-8 and not empty.
char32_t FirstCodePoint(std::string_view text, size_t* size_bytes);
char32_t LastCodePoint(std::string_view text, size_t* size_bytes);

void AppendUtf8(char32_t c, std::string* text);

}  // namespace taopd
