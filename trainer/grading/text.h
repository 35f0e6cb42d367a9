// Small operations on ASCII text that the graders share.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace re2 {
class RE2;
}

namespace taopd::grading {

inline bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
inline bool IsDigit(char c) { return c >= '0' && c <= '9'; }
inline bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
inline char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// The position that means "not found".
inline constexpr size_t kNone = std::string_view::npos;

// Returns the position of the first character at or after i that is not a space.
size_t SkipSpaces(std::string_view text, size_t i);
// Returns the position of the first character at or after i that is not a digit.
size_t SkipDigits(std::string_view text, size_t i);
// Returns the text without the spaces at both ends.
std::string Stripped(std::string_view text);
void ReplaceAll(std::string* text, std::string_view from, std::string_view to);
std::string LowerCase(std::string_view text);
// True for the second and later bytes of a character in UTF-8.
inline bool ContinuesCharacter(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }
// Returns the number of Unicode characters of a text in UTF-8.
size_t NumCharacters(std::string_view text);
// Returns the pattern's first group in its last match, or nullopt if nothing matches.
std::optional<std::string> LastMatch(std::string_view text, const re2::RE2& pattern);

}  // namespace taopd::grading
