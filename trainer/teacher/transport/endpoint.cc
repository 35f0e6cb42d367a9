#include "trainer/teacher/transport/endpoint.h"

#include <utility>

#include "trainer/teacher/transport/teacher_protocols.h"

namespace taopd {
namespace {

// The row and whether TLS is asked for; removes the scheme. The row is null if there is no such
// scheme.
std::pair<const TeacherProtocol*, bool> TakeScheme(std::string* text) {
  for (const TeacherProtocol& protocol : kTeacherProtocols) {
    for (const bool tls : {false, true}) {
      const std::string scheme = Concat(tls ? protocol.tls_scheme : protocol.scheme, "://");
      if (!text->starts_with(scheme)) continue;
      text->erase(0, scheme.size());
      return {&protocol, tls};
    }
  }
  return {nullptr, false};
}

}  // namespace

std::string DescribeTeacherSchemes() {
  std::string text;
  for (const TeacherProtocol& protocol : kTeacherProtocols) {
    text += Concat(text.empty() ? "" : ", ", protocol.scheme, "://host:port (", protocol.server,
                   "; over TLS ", protocol.tls_scheme, ")");
  }
  return text;
}

absl::StatusOr<TeacherEndpoint> ParseTeacherEndpoint(const std::string& text) {
  std::string rest = text;
  const auto [protocol, tls] = TakeScheme(&rest);
  absl::StatusOr<ServerAddress> address =
      protocol == nullptr
          ? InvalidArgument("does not begin with a known scheme")
          : ParseServerAddress(rest, tls, /*is_http=*/protocol->make_http != nullptr);
  if (!address.ok()) {
    return InvalidArgument("teacher endpoint \"", text, "\" ", address.status().message(),
                           " (expected ", DescribeTeacherSchemes(), ")");
  }
  TeacherEndpoint endpoint{*std::move(address), text, protocol};
  // People copy OpenAI's form of the address.
  if (endpoint.prefix.ends_with("/v1")) endpoint.prefix.resize(endpoint.prefix.size() - 3);
  return endpoint;
}

absl::StatusOr<std::vector<TeacherEndpoint>> ParseTeacherEndpoints(
    const std::vector<std::string>& endpoints) {
  if (endpoints.empty()) return InvalidArgument("no teacher endpoint is given");
  std::vector<TeacherEndpoint> parsed;
  for (const std::string& text : endpoints) {
    TAOPD_ASSIGN_OR_RETURN(TeacherEndpoint endpoint, ParseTeacherEndpoint(text));
    for (const TeacherEndpoint& other : parsed) {
      if (other.address == endpoint.address && other.prefix == endpoint.prefix) {
        return InvalidArgument("teacher endpoint \"", text, "\" is given twice");
      }
      if (other.protocol != endpoint.protocol) {
        return InvalidArgument("teacher endpoints \"", other.name, "\" and \"", text,
                               "\" speak different protocols: one teacher has one");
      }
    }
    parsed.push_back(std::move(endpoint));
  }
  return parsed;
}

}  // namespace taopd
