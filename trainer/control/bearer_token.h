// The token of requests that change something.
#pragma once

#include <string_view>

namespace taopd {

// Whether `header` is "Bearer TOKEN". Takes the same time for every header of one length, so that
// the token cannot be guessed byte by byte.
inline bool IsBearerOf(std::string_view header, std::string_view token) {
  constexpr std::string_view kScheme = "Bearer ";
  if (header.size() != kScheme.size() + token.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < header.size(); ++i) {
    const char expected = i < kScheme.size() ? kScheme[i] : token[i - kScheme.size()];
    difference |= static_cast<unsigned char>(header[i] ^ expected);
  }
  return difference == 0;
}

}  // namespace taopd
