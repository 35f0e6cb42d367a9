// Addresses of servers as users write them: the scheme of a URL, and what follows it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
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

// Compares the credentials with the servers that they are for. Returns INVALID_ARGUMENT if there
// are TLS files but no server that uses TLS, which is a mistake of the user. Logs a warning that
// names the first server to which a key is sent without encryption.
absl::Status CheckTlsUse(const std::vector<ServerAddress>& servers,
                         const ClientCredentials& credentials);

// Reads "http://host[:port][/path]", or https. Returns INVALID_ARGUMENT saying what is wrong.
absl::StatusOr<ServerAddress> ParseHttpUrl(const std::string& text);

// Tables of protocols have rows with the members
//   scheme, tls_scheme   without "://": "grpc", "grpcs"; one that ends with "http" names HTTP
//   server               the server, in messages and help

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

// An endpoint as users write it: a scheme of a table, "://" and the server's address.
template <typename Protocol>
struct ProtocolEndpoint {
  const Protocol* protocol = nullptr;  // a row of the table
  ServerAddress server;
};

// Returns INVALID_ARGUMENT, naming what is wrong, if the endpoint is malformed. `what` is the kind
// of endpoint, for the message.
template <typename Protocol, size_t kNum>
absl::StatusOr<ProtocolEndpoint<Protocol>> ParseEndpoint(std::string_view what,
                                                         const Protocol (&protocols)[kNum],
                                                         const std::string& text) {
  std::string problem = "does not begin with a known scheme";
  for (const Protocol& protocol : protocols) {
    for (const bool tls : {false, true}) {
      const std::string scheme = Concat(tls ? protocol.tls_scheme : protocol.scheme, "://");
      if (!text.starts_with(scheme)) continue;
      const bool is_http = std::string_view(protocol.scheme).ends_with("http");
      auto server = ParseServerAddress(text.substr(scheme.size()), tls, is_http);
      if (server.ok()) return ProtocolEndpoint<Protocol>{&protocol, *std::move(server)};
      problem = std::string(server.status().message());
    }
  }
  return InvalidArgument(what, " endpoint \"", text, "\" ", problem, " (expected ",
                         DescribeSchemes(protocols), ")");
}

}  // namespace taopd
