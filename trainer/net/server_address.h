// Addresses of servers as users write them: the scheme of a URL, and what follows it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/wire/client_credentials.h"

namespace taopd {

struct ServerAddress {
  bool tls = false;
  std::string address;  // host:port; an IPv6 address is in brackets
  std::string prefix;   // of HTTP: the path of the URL, without a slash at its end

  // Without the prefix: "https://host:port".
  std::string Url() const { return (tls ? "https://" : "http://") + address; }
};

// Reads "host:port" or, if `is_http` is true, "host[:port][/path]". Returns INVALID_ARGUMENT saying
// what is wrong, such as "has no port".
absl::StatusOr<ServerAddress> ParseServerAddress(std::string text, bool tls, bool is_http);

// Returns INVALID_ARGUMENT if the key has characters that the header of a request cannot carry.
absl::Status CheckApiKey(const std::string& key);

// Compares the credentials with the servers that they are for. Returns INVALID_ARGUMENT if there
// are TLS files but no server that uses TLS, which is a mistake of the user. Logs a warning that
// names the first server to which a key is sent without encryption.
absl::Status CheckTlsUse(const std::vector<ServerAddress>& servers,
                         const ClientCredentials& credentials);

// Reads "http://host[:port][/path]", or https. Returns INVALID_ARGUMENT saying what is wrong.
absl::StatusOr<ServerAddress> ParseHttpUrl(const std::string& text);

// The scheme of a URL, from a table of protocols whose rows have the members
//   scheme, tls_scheme   without "://": "grpc", "grpcs"
//   server               the server, in messages and help
template <typename Protocol>
struct UrlScheme {
  const Protocol* protocol = nullptr;  // a row of the table; null if no row has the URL's scheme
  bool tls = false;
  std::string rest;  // the URL after "://"
};

template <typename Protocol, size_t kNum>
UrlScheme<Protocol> FindScheme(const Protocol (&protocols)[kNum], std::string_view url) {
  for (const Protocol& protocol : protocols) {
    for (const bool tls : {false, true}) {
      const std::string scheme = Concat(tls ? protocol.tls_scheme : protocol.scheme, "://");
      if (url.starts_with(scheme)) return {&protocol, tls, std::string(url.substr(scheme.size()))};
    }
  }
  return {};
}

// Returns "grpc://host:port (taopd-teacher; over TLS grpcs), ...", for messages and help texts.
template <typename Protocol, size_t kNum>
std::string DescribeSchemes(const Protocol (&protocols)[kNum]) {
  std::string text;
  for (const Protocol& protocol : protocols) {
    text += Concat(text.empty() ? "" : ", ", protocol.scheme, "://host:port (", protocol.server,
                   "; over TLS ", protocol.tls_scheme, ")");
  }
  return text;
}

}  // namespace taopd
