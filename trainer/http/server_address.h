// Addresses of servers as users write them behind the scheme of a URL.
#pragma once

#include <string>

#include "common/base/status.h"

namespace taopd {

struct ServerAddress {
  bool tls = false;
  std::string address;  // host:port; an IPv6 address stands in brackets
  std::string prefix;   // of HTTP: the path of the URL, without a slash at its end

  // Without the prefix: "https://host:port".
  std::string Url() const { return (tls ? "https://" : "http://") + address; }
};

// Reads "host:port" or, if `is_http` is true, "host[:port][/path]". Returns INVALID_ARGUMENT saying
// what is wrong, such as "has no port".
absl::StatusOr<ServerAddress> ParseServerAddress(std::string text, bool tls, bool is_http);

// Returns INVALID_ARGUMENT if the key has characters that the header of a request cannot carry.
absl::Status CheckApiKey(const std::string& key);

// Reads "http://host[:port][/path]", or https. Returns INVALID_ARGUMENT saying what is wrong.
absl::StatusOr<ServerAddress> ParseHttpUrl(const std::string& text);

}  // namespace taopd
