#include "trainer/teacher/transport/endpoint.h"

#include <utility>

#include "trainer/teacher/transport/teacher_protocols.h"

namespace taopd {

std::string DescribeTeacherSchemes() { return DescribeSchemes(kTeacherProtocols); }

absl::StatusOr<TeacherEndpoint> ParseTeacherEndpoint(const std::string& text) {
  const auto [protocol, tls, rest] = FindScheme(kTeacherProtocols, text);
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
