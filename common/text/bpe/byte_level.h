// The byte-level alphabet of GPT-2: each of the 256 bytes is spelled as one printable character
// (itself where Latin-1 prints it, else the next free one from U+0100 on), so that a vocabulary of
// byte strings can be kept as text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace taopd {

char32_t ByteLevelChar(uint8_t byte);

// The bytes that a token's spelling stands for; nullopt when a character is not in the alphabet.
std::optional<std::string> ByteLevelDecode(std::string_view spelling);

}  // namespace taopd
