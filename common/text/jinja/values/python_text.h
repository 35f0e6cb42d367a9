// Python's str methods over UTF-8: positions count code points, white space and case are Unicode's.
// REQUIRES of every text: valid UTF-8. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace taopd::jinja {

int64_t NumCodePoints(std::string_view text);
// Byte position of the code point `index`, or text.size() beyond the end. REQUIRES: index >= 0.
size_t ByteOffset(std::string_view text, int64_t index);
std::vector<std::string_view> CodePoints(std::string_view text);

bool IsPythonSpace(char32_t c);
bool IsPrintable(char32_t c);

// strip(), lstrip(), rstrip(): white space, or the characters of `chars`.
std::string_view StripLeft(std::string_view text, std::optional<std::string_view> chars = {});
std::string_view StripRight(std::string_view text, std::optional<std::string_view> chars = {});
std::string_view Strip(std::string_view text, std::optional<std::string_view> chars = {});

// split() at white space, or at a separator that is not empty; at most max_splits >= 0 cuts, any
// number for -1. From the right: rsplit().
std::vector<std::string_view> Split(std::string_view text,
                                    std::optional<std::string_view> separator, int64_t max_splits,
                                    bool from_right);
std::vector<std::string_view> SplitLines(std::string_view text);

std::string ToUpper(std::string_view text);
std::string ToLower(std::string_view text);
std::string ToTitle(std::string_view text);     // str.title()
std::string Capitalize(std::string_view text);  // first character upper, the others lower

// First occurrence at or after `from` (bytes), in linear time; npos when there is none.
size_t Find(std::string_view text, std::string_view part, size_t from = 0);
// Every occurrence, or the first max_count >= 0. An empty `old_part` is found between any two
// characters and at both ends.
std::string Replace(std::string_view text, std::string_view old_part, std::string_view new_part,
                    int64_t max_count);

enum class TextProperty { kLower, kUpper, kAlpha, kDigit, kAlphaNumeric, kSpace };
// islower(), isupper(), ...
bool HasProperty(std::string_view text, TextProperty property);

// markupsafe's escape(): & < > " '.
std::string EscapeHtml(std::string_view text);

}  // namespace taopd::jinja
