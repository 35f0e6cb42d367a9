// The byte-level alphabet of GPT-2, in which a vocabulary of byte strings can be stored as text.
// Each of the 256 bytes is spelled as one printable character: itself if it is printable in
// Latin-1, otherwise the next free character from U+0100 on.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace taopd {

// Returns the bytes of a token's spelling, or nullopt if a character is not in the alphabet.
std::optional<std::string> ByteLevelDecode(std::string_view spelling);

}  // namespace taopd
