#include "trainer/net/server_address.h"

#include <absl/strings/ascii.h>

#include <algorithm>
#include <charconv>

#include "common/base/log.h"

namespace taopd {
namespace {

bool IsHostCharacter(char c) { return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_'; }

bool IsAddressCharacter(char c) {  // of IPv6, with a zone
  return IsHostCharacter(c) || c == ':' || c == '%';
}

bool IsPathCharacter(char c) { return c > ' ' && c < 127 && c != '?' && c != '#'; }

bool IsHost(const std::string& host) {
  const bool is_bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return is_bracketed ? std::all_of(host.begin() + 1, host.end() - 1, IsAddressCharacter)
                      : !host.empty() && std::ranges::all_of(host, IsHostCharacter);
}

}  // namespace

absl::StatusOr<ServerAddress> ParseServerAddress(std::string text, bool tls, bool is_http) {
  ServerAddress server;
  server.tls = tls;
  if (const size_t slash = text.find('/'); is_http && slash != std::string::npos) {
    server.prefix = text.substr(slash);
    text.resize(slash);
    if (!std::ranges::all_of(server.prefix, IsPathCharacter))
      return InvalidArgument("has a malformed path");
    while (server.prefix.ends_with('/')) server.prefix.pop_back();
  }
  size_t colon = text.rfind(':');
  if (colon != std::string::npos && text.back() == ']') colon = std::string::npos;
  if (colon == std::string::npos) {
    if (!is_http) return InvalidArgument("has no port");
    colon = text.size();
    text += tls ? ":443" : ":80";
  }
  if (!IsHost(text.substr(0, colon))) return InvalidArgument("has a malformed host");
  int port = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + colon + 1, end, port);
  if (parsed.ec != std::errc() || parsed.ptr != end || port < 1 || port > 65535)
    return InvalidArgument("has no port in [1, 65535]");
  server.address = std::move(text);
  return server;
}

absl::Status CheckTlsUse(const std::vector<ServerAddress>& servers,
                         const ClientCredentials& credentials) {
  const auto plain =
      std::ranges::find_if(servers, [](const ServerAddress& server) { return !server.tls; });
  const bool any_tls =
      std::ranges::any_of(servers, [](const ServerAddress& server) { return server.tls; });
  const bool has_files = !credentials.tls_ca_file.empty() || !credentials.tls_cert_file.empty();
  if (has_files && !any_tls) {
    return InvalidArgument(
        "TLS files are given but no endpoint uses TLS: write grpcs:// or https:// for it");
  }
  if (!credentials.api_key.empty() && plain != servers.end()) {
    LogWarning("an API key is sent without encryption; use grpcs:// or https://",
               {{"server", plain->address}});
  }
  return absl::OkStatus();
}

absl::StatusOr<ServerAddress> ParseHttpUrl(const std::string& text) {
  const bool https = text.starts_with("https://");
  if (!https && !text.starts_with("http://"))
    return InvalidArgument("must begin with http:// or https://");
  return ParseServerAddress(text.substr(https ? 8 : 7), https, /*is_http=*/true);
}

}  // namespace taopd
