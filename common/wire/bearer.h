// The value of an Authorization header that shows a key: "Bearer KEY" (RFC 6750).
#pragma once

#include <absl/strings/match.h>

#include <algorithm>
#include <string_view>

namespace taopd {

// Returns whether clients can show this key: it is not empty, and printable ASCII without spaces.
inline bool IsBearerKey(std::string_view key) {
  return !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return static_cast<unsigned char>(c) > 0x20 && static_cast<unsigned char>(c) < 0x7f;
  });
}

// Returns the key, or an empty text if there is none. The scheme may be in any letter case (RFC
// 9110, section 11.1).
inline std::string_view BearerKeyOf(std::string_view authorization) {
  constexpr absl::string_view kScheme = "Bearer ";
  if (!absl::StartsWithIgnoreCase({authorization.data(), authorization.size()}, kScheme)) return {};
  return authorization.substr(kScheme.size());
}

}  // namespace taopd
