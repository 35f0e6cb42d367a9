// What a client sent, in the messages that go back to it.
#pragma once

#include <string>
#include <string_view>

namespace taopd {

// The most bytes of its input that a message repeats.
inline constexpr size_t kMaxExcerptBytes = 160;

// `text`, cut at a character's end if it is long: "aaaa... (10000000 bytes)". Every message that
// repeats a client's text uses this: otherwise a client could make the server send, and log, as
// much as it receives.
std::string Excerpt(std::string_view text);

}  // namespace taopd
