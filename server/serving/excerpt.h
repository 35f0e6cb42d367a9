// Excerpts of a client's input in messages that are returned to it.
#pragma once

#include <string>
#include <string_view>

namespace taopd {

// The maximum number of bytes of input that a message repeats.
inline constexpr size_t kMaxExcerptBytes = 160;

// Returns `text`, cut at the end of a character if it is long: "aaaa... (10000000 bytes)". Every
// message that repeats a client's text must use this; otherwise a client could make the server send
// and log as much as it receives.
std::string Excerpt(std::string_view text);

}  // namespace taopd
