// The value of an Authorization header that shows a key: "Bearer KEY" (RFC 6750).
#pragma once

#include <absl/strings/match.h>

#include <string_view>

namespace taopd {

// Returns the key, or an empty text if there is none. The scheme may be in any letter case (RFC
// 9110, section 11.1).
inline std::string_view BearerKeyOf(std::string_view authorization) {
  constexpr absl::string_view kScheme = "Bearer ";
  if (!absl::StartsWithIgnoreCase({authorization.data(), authorization.size()}, kScheme)) return {};
  return authorization.substr(kScheme.size());
}

}  // namespace taopd
