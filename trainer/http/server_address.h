// Addresses of servers as users write them behind the scheme of a URL.
#pragma once

#include <string>
#include <vector>

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

// Compares the settings for TLS and keys with the servers that they are for. Returns
// INVALID_ARGUMENT if there are TLS files but no server that uses TLS, which is a mistake of the
// user. Logs a warning that names the first server to which a key is sent without encryption.
absl::Status CheckTlsUse(const std::vector<ServerAddress>& servers, bool has_tls_files,
                         bool has_api_key);

// Reads "http://host[:port][/path]", or https. Returns INVALID_ARGUMENT saying what is wrong.
absl::StatusOr<ServerAddress> ParseHttpUrl(const std::string& text);

}  // namespace taopd
