#include "common/text/bpe/byte_level.h"

#include <array>

#include "common/text/unicode/unicode.h"

namespace taopd {
namespace {

struct Alphabet {
  std::array<char32_t, 256> char_of_byte;
  std::array<int16_t, 512> byte_of_char;  // -1 if the character is not in the alphabet
};

constexpr Alphabet kAlphabet = [] {
  Alphabet alphabet{};
  alphabet.byte_of_char.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const char32_t c = is_printable ? static_cast<char32_t>(byte) : next++;
    alphabet.char_of_byte[byte] = c;
    alphabet.byte_of_char[c] = static_cast<int16_t>(byte);
  }
  return alphabet;
}();

}  // namespace

char32_t ByteLevelChar(uint8_t byte) { return kAlphabet.char_of_byte[byte]; }

std::optional<std::string> ByteLevelDecode(std::string_view spelling) {
  std::string bytes;
  while (!spelling.empty()) {
    size_t size_bytes;
    const char32_t c = FirstCodePoint(spelling, &size_bytes);
    if (c >= kAlphabet.byte_of_char.size() || kAlphabet.byte_of_char[c] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte_of_char[c]);
    spelling.remove_prefix(size_bytes);
  }
  return bytes;
}

}  // namespace taopd
