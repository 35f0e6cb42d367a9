// Excerpts of a client's input in messages that are returned to it.
#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"

namespace taopd {

// The maximum number of bytes of input that a message repeats.
inline constexpr size_t kMaxExcerptBytes = 160;

// Returns `text`, cut at the end of a character if it is long: "aaaa... (10000000 bytes)". Every
// message that repeats a client's text must use this; otherwise a client could make the server send
// and log as much as it receives.
inline std::string Excerpt(std::string_view text) {
  if (text.size() <= kMaxExcerptBytes) return std::string(text);
  size_t end = kMaxExcerptBytes;
  // Do not cut a UTF-8 character, which has at most four bytes.
  while (end > kMaxExcerptBytes - 4 && (text[end] & 0xc0) == 0x80) --end;
  return Concat(text.substr(0, end), "... (", text.size(), " bytes)");
}

}  // namespace taopd
