// The schemes of servers' URLs, from a table of protocols whose rows have the members
//   scheme, tls_scheme   without "://": "grpc", "grpcs"
//   server               the server, in messages and help
#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"

namespace taopd {

template <typename Protocol>
struct UrlScheme {
  const Protocol* protocol = nullptr;  // a row of the table; null if no row has the URL's scheme
  bool tls = false;
  std::string rest;  // the URL behind "://"
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
