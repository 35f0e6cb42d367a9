#include "trainer/teacher/endpoint.h"

#include <algorithm>
#include <charconv>

namespace taopd {
namespace {

constexpr char kScheme[] = "grpc://";

bool IsHostCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_';
}

bool IsAddressCharacter(char c) {  // of IPv6, with a zone
  return IsHostCharacter(c) || c == ':' || c == '%';
}

}  // namespace

absl::StatusOr<std::string> GrpcTargetOfEndpoint(const std::string& endpoint) {
  const auto error = [&](const std::string& reason) {
    return InvalidArgument("teacher endpoint \"", endpoint, "\" ", reason,
                           " (expected grpc://host:port)");
  };
  if (endpoint.rfind(kScheme, 0) != 0) return error("does not begin with grpc://");
  const std::string address = endpoint.substr(sizeof(kScheme) - 1);
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return error("has no port");

  const std::string host = address.substr(0, colon);
  const bool is_bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const bool host_ok =
      is_bracketed ? std::all_of(host.begin() + 1, host.end() - 1, IsAddressCharacter)
                   : !host.empty() && std::all_of(host.begin(), host.end(), IsHostCharacter);
  if (!host_ok) return error("has a malformed host");

  int port = 0;
  const char* end = address.data() + address.size();
  const auto parsed = std::from_chars(address.data() + colon + 1, end, port);
  if (parsed.ec != std::errc() || parsed.ptr != end || port < 1 || port > 65535) {
    return error("has no port in [1, 65535]");
  }
  return "dns:///" + address;
}

absl::StatusOr<std::vector<std::string>> GrpcTargetsOfEndpoints(
    const std::vector<std::string>& endpoints) {
  if (endpoints.empty()) return InvalidArgument("no teacher endpoint is given");
  std::vector<std::string> targets;
  for (const std::string& endpoint : endpoints) {
    TAOPD_ASSIGN_OR_RETURN(std::string target, GrpcTargetOfEndpoint(endpoint));
    if (std::find(targets.begin(), targets.end(), target) != targets.end()) {
      return InvalidArgument("teacher endpoint \"", endpoint, "\" is given twice");
    }
    targets.push_back(std::move(target));
  }
  return targets;
}

}  // namespace taopd
