#include "common/text/jinja/values/python_text.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_replace.h>
#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>

#include "common/text/jinja/error.h"
#include "common/text/jinja/limits.h"
#include "common/text/unicode/unicode.h"

namespace taopd::jinja {
namespace {

bool IsLead(char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }

bool IsIn(std::optional<std::string_view> chars, std::string_view character, char32_t c) {
  return chars ? chars->find(character) != std::string_view::npos : IsPythonSpace(c);
}

icu::UnicodeString FromUtf8(std::string_view text) {
  return icu::UnicodeString::fromUTF8(
      icu::StringPiece(text.data(), static_cast<int32_t>(text.size())));
}

std::string ToUtf8(const icu::UnicodeString& text) {
  std::string utf8;
  text.toUTF8String(utf8);
  return utf8;
}

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 128; });
}

bool IsLineBreak(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

void AddPart(std::vector<std::string_view>* parts, std::string_view part) {
  if (static_cast<int64_t>(parts->size()) == kMaxParts) {
    FailLimit("text of more parts than the limit of ", kMaxParts);
  }
  parts->push_back(part);
}

std::vector<std::string_view> SplitAtSpace(std::string_view text, int64_t max_splits) {
  std::vector<std::string_view> parts;
  for (text = StripLeft(text); !text.empty(); text = StripLeft(text)) {
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) {
      AddPart(&parts, text);
      break;
    }
    size_t end = 0, size_bytes = 0;
    while (end < text.size() && !IsPythonSpace(FirstCodePoint(text.substr(end), &size_bytes))) {
      end += size_bytes;
    }
    AddPart(&parts, text.substr(0, end));
    text.remove_prefix(end);
  }
  return parts;
}

std::vector<std::string_view> SplitAtSpaceFromRight(std::string_view text, int64_t max_splits) {
  std::vector<std::string_view> parts;
  for (text = StripRight(text); !text.empty(); text = StripRight(text)) {
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) {
      AddPart(&parts, text);
      break;
    }
    size_t begin = text.size(), size_bytes = 0;
    while (begin > 0 && !IsPythonSpace(LastCodePoint(text.substr(0, begin), &size_bytes))) {
      begin -= size_bytes;
    }
    AddPart(&parts, text.substr(begin));
    text = text.substr(0, begin);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

size_t ByteOffset(std::string_view text, int64_t index) {
  size_t offset = 0;
  for (; offset < text.size(); ++offset) {
    if (IsLead(text[offset]) && index-- == 0) break;
  }
  return offset;
}

std::optional<size_t> ParseIndex(std::string_view text) {
  constexpr size_t kMaxDigits = 9;
  if (text.empty() || text.size() > kMaxDigits) return std::nullopt;
  size_t index = 0;
  for (const char digit : text) {
    if (digit < '0' || digit > '9') return std::nullopt;
    index = 10 * index + static_cast<size_t>(digit - '0');
  }
  return index;
}

bool IsPythonSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || (c >= 0x80 && IsWhiteSpace(c));
}

bool IsPrintable(char32_t c) {
  if (c < 0x7F) return c >= 0x20;
  constexpr uint32_t kNotPrintable = U_GC_C_MASK | U_GC_Z_MASK;  // U+0020 is handled above
  return (U_MASK(u_charType(static_cast<UChar32>(c))) & kNotPrintable) == 0;
}

std::string_view StripLeft(std::string_view text, std::optional<std::string_view> chars) {
  while (!text.empty()) {
    size_t size_bytes = 0;
    const char32_t c = FirstCodePoint(text, &size_bytes);
    if (!IsIn(chars, text.substr(0, size_bytes), c)) break;
    text.remove_prefix(size_bytes);
  }
  return text;
}

std::string_view StripRight(std::string_view text, std::optional<std::string_view> chars) {
  while (!text.empty()) {
    size_t size_bytes = 0;
    const char32_t c = LastCodePoint(text, &size_bytes);
    if (!IsIn(chars, text.substr(text.size() - size_bytes), c)) break;
    text.remove_suffix(size_bytes);
  }
  return text;
}

std::string_view Strip(std::string_view text, std::optional<std::string_view> chars) {
  return StripRight(StripLeft(text, chars), chars);
}

size_t Find(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const std::string_view rest = text.substr(from);
  // string_view::find takes time proportional to the product of the lengths.
  const void* found = memmem(rest.data(), rest.size(), part.data(), part.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

std::vector<std::string_view> Split(std::string_view text,
                                    std::optional<std::string_view> separator, int64_t max_splits,
                                    bool from_right) {
  if (!separator) {
    return from_right ? SplitAtSpaceFromRight(text, max_splits) : SplitAtSpace(text, max_splits);
  }
  std::vector<std::string_view> parts;
  auto may_cut = [&] { return max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits; };
  if (from_right) {
    for (size_t at; may_cut() && (at = text.rfind(*separator)) != std::string_view::npos;
         text = text.substr(0, at)) {
      AddPart(&parts, text.substr(at + separator->size()));
    }
    AddPart(&parts, text);
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  size_t begin = 0;
  for (size_t at; may_cut() && (at = Find(text, *separator, begin)) != std::string_view::npos;
       begin = at + separator->size()) {
    AddPart(&parts, text.substr(begin, at - begin));
  }
  AddPart(&parts, text.substr(begin));
  return parts;
}

std::vector<std::string_view> SplitLines(std::string_view text) {
  std::vector<std::string_view> lines;
  size_t begin = 0, size_bytes = 0;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = FirstCodePoint(text.substr(at), &size_bytes);
    if (!IsLineBreak(c)) {
      at += size_bytes;
      continue;
    }
    AddPart(&lines, text.substr(begin, at - begin));
    at += size_bytes;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    begin = at;
  }
  if (begin < text.size()) AddPart(&lines, text.substr(begin));
  return lines;
}

std::string ToUpper(std::string_view text) {
  if (!IsAscii(text)) return ToUtf8(FromUtf8(text).toUpper(icu::Locale::getRoot()));
  return absl::AsciiStrToUpper(absl::string_view(text.data(), text.size()));
}

std::string ToLower(std::string_view text) {
  if (!IsAscii(text)) return ToUtf8(FromUtf8(text).toLower(icu::Locale::getRoot()));
  return absl::AsciiStrToLower(absl::string_view(text.data(), text.size()));
}

std::string ToTitle(std::string_view text) {
  std::string title;
  bool follows_cased = false;
  for (const std::string_view character : CodePoints(text)) {
    const char32_t c = FirstCodePoint(character);
    title += follows_cased ? ToLower(character) : ToUpper(character);
    follows_cased = u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_CASED);
  }
  return title;
}

std::string Capitalize(std::string_view text) {
  const size_t first_bytes = ByteOffset(text, 1);
  return ToUpper(text.substr(0, first_bytes)) + ToLower(text.substr(first_bytes));
}

std::string Replace(std::string_view text, std::string_view old_part, std::string_view new_part,
                    int64_t max_count) {
  std::string result;
  int64_t count = 0;
  auto may_replace = [&] { return max_count < 0 || count < max_count; };
  if (old_part.empty()) {
    for (const std::string_view character : CodePoints(text)) {
      if (may_replace()) result += new_part, ++count;
      result += character;
    }
    if (may_replace()) result += new_part;
    return result;
  }
  size_t begin = 0;
  for (size_t at; may_replace() && (at = Find(text, old_part, begin)) != std::string_view::npos;
       begin = at + old_part.size(), ++count) {
    result += text.substr(begin, at - begin);
    result += new_part;
  }
  return result += text.substr(begin);
}

bool HasProperty(std::string_view text, TextProperty property) {
  bool has_cased = false;
  for (const std::string_view character : CodePoints(text)) {
    const auto c = static_cast<UChar32>(FirstCodePoint(character));
    const bool is_upper = u_isUUppercase(c), is_lower = u_isULowercase(c), is_title = u_istitle(c);
    has_cased |= is_upper || is_lower || is_title;
    switch (property) {
      case TextProperty::kLower:
        if (is_upper || is_title) return false;
        break;
      case TextProperty::kUpper:
        if (is_lower || is_title) return false;
        break;
      case TextProperty::kAlpha:
        if (!u_isalpha(c)) return false;
        break;
      case TextProperty::kDigit:
        if (!u_isdigit(c)) return false;
        break;
      case TextProperty::kAlphaNumeric:
        if (!u_isalpha(c) && (U_MASK(u_charType(c)) & U_GC_N_MASK) == 0) return false;
        break;
      case TextProperty::kSpace:
        if (!IsPythonSpace(static_cast<char32_t>(c))) return false;
        break;
    }
  }
  if (property == TextProperty::kLower || property == TextProperty::kUpper) return has_cased;
  return !text.empty();
}

std::string EscapeHtml(std::string_view text) {
  return absl::StrReplaceAll(
      absl::string_view(text.data(), text.size()),
      {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&#34;"}, {"'", "&#39;"}});
}

}  // namespace taopd::jinja
