// Python's str methods over UTF-8. White space and letter case are Unicode's. All texts must be
// valid UTF-8. All functions are pure and thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace taopd::jinja {

// Returns the byte position of the code point `index`, or text.size() if there is none. REQUIRES:
// index >= 0.
size_t ByteOffset(std::string_view text, int64_t index);
// The code points of a text, for loops over them:
//   for (const std::string_view character : CodePoints(text))
// A list of them would take 16 times the memory of the text.
class CodePoints {
 public:
  class Iterator {
   public:
    explicit Iterator(std::string_view rest) : rest_(rest) {}
    std::string_view operator*() const { return rest_.substr(0, ByteOffset(rest_, 1)); }
    Iterator& operator++() {
      rest_.remove_prefix(ByteOffset(rest_, 1));
      return *this;
    }
    bool operator!=(const Iterator& other) const { return rest_.size() != other.rest_.size(); }

   private:
    std::string_view rest_;
  };

  // The text must outlive the object.
  explicit CodePoints(std::string_view text) : text_(text) {}
  Iterator begin() const { return Iterator(text_); }
  Iterator end() const { return Iterator({}); }

 private:
  const std::string_view text_;
};

// Returns the number that a text of one to nine ASCII digits writes, or nullopt for any other text.
std::optional<size_t> ParseIndex(std::string_view text);

bool IsPythonSpace(char32_t c);
bool IsPrintable(char32_t c);

// lstrip(), rstrip() and strip(): remove white space, or the characters of `chars`.
std::string_view StripLeft(std::string_view text, std::optional<std::string_view> chars = {});
std::string_view StripRight(std::string_view text, std::optional<std::string_view> chars = {});
std::string_view Strip(std::string_view text, std::optional<std::string_view> chars = {});

// Implements split(), or rsplit() if from_right. Splits at white space, or at `separator`, which
// must not be empty. Makes at most max_splits cuts; -1 means any number. This function and
// SplitLines throw TemplateError if there are more than kMaxParts parts (limits.h).
std::vector<std::string_view> Split(std::string_view text,
                                    std::optional<std::string_view> separator, int64_t max_splits,
                                    bool from_right);
std::vector<std::string_view> SplitLines(std::string_view text);

std::string ToUpper(std::string_view text);
std::string ToLower(std::string_view text);
// title().
std::string ToTitle(std::string_view text);
// capitalize(): the first character in upper case, the others in lower case.
std::string Capitalize(std::string_view text);

// Returns the byte position of the first occurrence at or after the byte `from`, or npos if there
// is none. Takes linear time.
size_t Find(std::string_view text, std::string_view part, size_t from = 0);
// Replaces all occurrences if max_count is negative, otherwise the first max_count. An empty
// `old_part` occurs between any two characters and at both ends.
std::string Replace(std::string_view text, std::string_view old_part, std::string_view new_part,
                    int64_t max_count);

enum class TextProperty { kLower, kUpper, kAlpha, kDigit, kAlphaNumeric, kSpace };
// islower(), isupper(), ...
bool HasProperty(std::string_view text, TextProperty property);

// markupsafe's escape(): & < > " '.
std::string EscapeHtml(std::string_view text);

}  // namespace taopd::jinja
