#include "common/text/bpe/byte_level.h"

#include <array>

#include "common/text/unicode/unicode.h"

namespace taopd {
namespace {

// The byte of each character, or -1 if it is not in the alphabet.
constexpr std::array<int16_t, 512> kByteOfChar = [] {
  std::array<int16_t, 512> byte_of_char{};
  byte_of_char.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    byte_of_char[is_printable ? static_cast<char32_t>(byte) : next++] = static_cast<int16_t>(byte);
  }
  return byte_of_char;
}();

}  // namespace

std::optional<std::string> ByteLevelDecode(std::string_view spelling) {
  std::string bytes;
  while (!spelling.empty()) {
    size_t size_bytes;
    const char32_t c = FirstCodePoint(spelling, &size_bytes);
    if (c >= kByteOfChar.size() || kByteOfChar[c] < 0) return std::nullopt;
    bytes += static_cast<char>(kByteOfChar[c]);
    spelling.remove_prefix(size_bytes);
  }
  return bytes;
}

}  // namespace taopd
