#include "common/text/unicode/unicode.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "common/base/check.h"
#include "common/text/unicode/unicode_versions.h"

namespace taopd {
namespace {

CharClass ClassOf(UChar32 c) {
  const uint32_t category = U_MASK(u_charType(c));
  if ((category & U_GC_L_MASK) != 0) return CharClass::kLetter;
  if ((category & U_GC_N_MASK) != 0) return CharClass::kNumber;
  if (u_isUWhiteSpace(c)) return CharClass::kSpace;
  if (IsIn(kNewLetters, static_cast<uint32_t>(c))) return CharClass::kLetter;
  return IsIn(kNewNumbers, static_cast<uint32_t>(c)) ? CharClass::kNumber : CharClass::kOther;
}

UChar32 NextCodePoint(std::string_view text, size_t* position) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  UChar32 c;
  U8_NEXT_OR_FFFD(bytes, *position, text.size(), c);
  return c;
}

// Returns the size in bytes of the longest ASCII prefix, in steps of 8.
size_t AsciiPrefix(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if ((word & 0x8080808080808080u) != 0) break;
  }
  return i;
}

// ICU sorts combining marks by insertion, which is quadratic in the length of a run (14 s for 320
// KB of them). Sorting long runs beforehand, which is canonically equivalent, leaves it nothing to
// move.
std::string SortLongMarkRuns(std::string_view text) {
  constexpr size_t kLongRun = 32;
  struct Mark {
    UChar32 c;
    uint8_t combining_class;
  };
  std::string sorted;
  sorted.reserve(text.size());
  std::vector<Mark> run;
  size_t run_begin = 0;

  auto end_run = [&](size_t run_end) {
    if (run.size() <= kLongRun) {
      sorted += text.substr(run_begin, run_end - run_begin);
    } else {
      std::stable_sort(run.begin(), run.end(), [](const Mark& a, const Mark& b) {
        return a.combining_class < b.combining_class;
      });
      for (const Mark& mark : run) AppendUtf8(mark.c, &sorted);
    }
    run.clear();
  };

  for (size_t position = 0; position < text.size();) {
    const size_t begin = position;
    const UChar32 c = NextCodePoint(text, &position);
    if (run.empty()) run_begin = begin;
    // Three characters have class 0 but decompose into marks of classes 129 and 130 or 132.
    if (c == 0x0F73 || c == 0x0F75 || c == 0x0F81) {
      const UChar32 second = c == 0x0F73 ? 0x0F72 : c == 0x0F75 ? 0x0F74 : 0x0F80;
      for (const UChar32 part : {UChar32{0x0F71}, second}) {
        run.push_back({part, u_getCombiningClass(part)});
      }
    } else if (const uint8_t combining_class = u_getCombiningClass(c);
               combining_class != 0 && !IsIn(kInertInNfc, static_cast<uint32_t>(c))) {
      run.push_back({c, combining_class});
    } else {
      end_run(begin);
      sorted += text.substr(begin, position - begin);
    }
  }
  if (!run.empty()) end_run(text.size());
  return sorted;
}

// Returns whether all characters are from blocks in which every character is normal and none
// combines with a character of these blocks: below U+0300; U+2010 to U+203F (dashes, quotation
// marks, ellipsis); U+4E00 to U+9FFF (Han); U+1F000 to U+1FFFF (emoji). REQUIRES: valid UTF-8.
bool IsPlainlyNormal(std::string_view text) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  for (size_t i = 0; i < text.size();) {
    const uint8_t lead = bytes[i];
    if (lead < 0x80) {
      ++i;
      i += AsciiPrefix(text.substr(i));
    } else if (lead < 0xCC) {
      i += 2;
    } else if ((lead == 0xE2 && bytes[i + 1] == 0x80 && bytes[i + 2] >= 0x90) ||
               (lead == 0xE4 && bytes[i + 1] >= 0xB8) || (lead >= 0xE5 && lead <= 0xE9)) {
      i += 3;
    } else if (lead == 0xF0 && bytes[i + 1] == 0x9F && bytes[i + 2] >= 0x80) {
      i += 4;
    } else {
      return false;
    }
  }
  return true;
}

void AppendNfc(std::string_view text, std::string* normalized) {
  TAOPD_CHECK_LE(text.size(), static_cast<size_t>(std::numeric_limits<int32_t>::max()));
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(error);
  icu::StringByteSink<std::string> sink(normalized);  // appends
  if (U_SUCCESS(error)) {
    nfc->normalizeUTF8(0, {text.data(), static_cast<int32_t>(text.size())}, sink, nullptr, error);
  }
  TAOPD_CHECK(U_SUCCESS(error));  // ICU contains its data, and the text is valid
}

}  // namespace

bool IsValidUtf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  for (size_t i = 0; i < text.size();) {
    UChar32 c;
    U8_NEXT(bytes, i, text.size(), c);
    if (c < 0) return false;
    // Characters outside of ASCII come in groups, with long runs of ASCII between them.
    if (c < 0x80) i += AsciiPrefix(text.substr(i));
  }
  return true;
}

std::string RepairUtf8(std::string_view text) {
  std::string repaired;
  repaired.reserve(text.size());
  for (size_t position = 0; position < text.size();) {
    AppendUtf8(static_cast<char32_t>(NextCodePoint(text, &position)), &repaired);
  }
  return repaired;
}

size_t IncompleteSuffixBytes(std::string_view text) {
  for (size_t size = 1; size <= 3 && size <= text.size(); ++size) {
    const std::string_view suffix = text.substr(text.size() - size);
    const auto lead = static_cast<uint8_t>(suffix[0]);
    if (U8_IS_TRAIL(lead)) continue;
    // A suffix is incomplete if more bytes would make it one character. By the rule that a maximal
    // part is replaced, it becomes one U+FFFD.
    const size_t length =
        U8_IS_LEAD(lead) ? 1 + static_cast<size_t>(U8_COUNT_TRAIL_BYTES(lead)) : 1;
    if (size >= length) return 0;
    constexpr size_t kReplacementBytes = 3;
    return RepairUtf8(suffix).size() == kReplacementBytes ? size : 0;
  }
  return 0;
}

std::string NormalizeNfc(std::string_view text) {
  if (IsPlainlyNormal(text)) return std::string(text);
  const std::string sorted = SortLongMarkRuns(text);
  std::string normalized;
  normalized.reserve(sorted.size());
  size_t begin = 0;
  for (size_t position = 0; position < sorted.size();) {
    const size_t at = position;
    if (IsIn(kInertInNfc, static_cast<uint32_t>(NextCodePoint(sorted, &position)))) {
      AppendNfc(std::string_view(sorted).substr(begin, at - begin), &normalized);
      normalized += std::string_view(sorted).substr(at, position - at);
      begin = position;
    }
  }
  AppendNfc(std::string_view(sorted).substr(begin), &normalized);
  return normalized;
}

Char NonAsciiCharAt(std::string_view text, size_t position) {
  const size_t begin = position;
  const UChar32 c = NextCodePoint(text, &position);
  return {ClassOf(c), static_cast<uint8_t>(position - begin)};
}

bool IsWhiteSpace(char32_t c) { return u_isUWhiteSpace(static_cast<UChar32>(c)); }

bool IsWordCharacter(char32_t c) {
  const auto code_point = static_cast<UChar32>(c);
  return u_isUAlphabetic(code_point) || u_hasBinaryProperty(code_point, UCHAR_JOIN_CONTROL) ||
         (U_MASK(u_charType(code_point)) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

char32_t FirstCodePoint(std::string_view text, size_t* size_bytes) {
  size_t end = 0;
  const auto c = static_cast<char32_t>(NextCodePoint(text, &end));
  if (size_bytes != nullptr) *size_bytes = end;
  return c;
}

char32_t LastCodePoint(std::string_view text, size_t* size_bytes) {
  size_t begin = text.size() - 1;
  while (begin > 0 && U8_IS_TRAIL(static_cast<uint8_t>(text[begin]))) --begin;
  return FirstCodePoint(text.substr(begin), size_bytes);
}

int64_t NumCodePoints(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return !U8_IS_TRAIL(static_cast<uint8_t>(c)); });
}

void AppendUtf8(char32_t c, std::string* text) {
  uint8_t bytes[U8_MAX_LENGTH];
  size_t size = 0;
  U8_APPEND_UNSAFE(bytes, size, static_cast<UChar32>(c));
  text->append(reinterpret_cast<const char*>(bytes), size);
}

}  // namespace taopd
