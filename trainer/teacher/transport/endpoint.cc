#include "trainer/teacher/transport/endpoint.h"

#include <algorithm>
#include <charconv>
#include <string_view>

namespace taopd {
namespace {

struct Scheme {
  std::string_view text;
  TeacherProtocol protocol;
  bool tls;
};
constexpr Scheme kSchemes[] = {
    {"grpc://", TeacherProtocol::kGrpc, false},
    {"grpcs://", TeacherProtocol::kGrpc, true},
    {"vllm+http://", TeacherProtocol::kVllm, false},
    {"vllm+https://", TeacherProtocol::kVllm, true},
    {"sglang+http://", TeacherProtocol::kSglang, false},
    {"sglang+https://", TeacherProtocol::kSglang, true},
};

bool IsHostCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_';
}

bool IsAddressCharacter(char c) {  // of IPv6, with a zone
  return IsHostCharacter(c) || c == ':' || c == '%';
}

bool IsPathCharacter(char c) { return c > ' ' && c < 127 && c != '?' && c != '#'; }

bool IsHost(const std::string& host) {
  const bool is_bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return is_bracketed ? std::all_of(host.begin() + 1, host.end() - 1, IsAddressCharacter)
                      : !host.empty() && std::all_of(host.begin(), host.end(), IsHostCharacter);
}

}  // namespace

absl::StatusOr<TeacherEndpoint> ParseTeacherEndpoint(const std::string& text) {
  const auto error = [&](const std::string& reason) {
    return InvalidArgument("teacher endpoint \"", text, "\" ", reason,
                           " (expected grpc://host:port, or vllm+http:// or sglang+http:// in "
                           "place of grpc://; grpcs and https for TLS)");
  };
  const auto scheme = std::find_if(std::begin(kSchemes), std::end(kSchemes),
                                   [&](const Scheme& s) { return text.starts_with(s.text); });
  if (scheme == std::end(kSchemes)) return error("does not begin with a known protocol");
  TeacherEndpoint endpoint;
  endpoint.name = text;
  endpoint.protocol = scheme->protocol;
  endpoint.tls = scheme->tls;
  std::string address = text.substr(scheme->text.size());
  const bool is_http = scheme->protocol != TeacherProtocol::kGrpc;
  if (const size_t slash = address.find('/'); is_http && slash != std::string::npos) {
    endpoint.prefix = address.substr(slash);
    address.resize(slash);
    if (!std::all_of(endpoint.prefix.begin(), endpoint.prefix.end(), IsPathCharacter)) {
      return error("has a malformed path");
    }
    while (endpoint.prefix.ends_with('/')) endpoint.prefix.pop_back();
    // People copy OpenAI's form of the address.
    if (endpoint.prefix.ends_with("/v1")) endpoint.prefix.resize(endpoint.prefix.size() - 3);
  }
  size_t colon = address.rfind(':');
  if (colon != std::string::npos && address.back() == ']') colon = std::string::npos;
  if (colon == std::string::npos) {
    if (!is_http) return error("has no port");
    colon = address.size();
    address += endpoint.tls ? ":443" : ":80";
  }
  if (!IsHost(address.substr(0, colon))) return error("has a malformed host");

  int port = 0;
  const char* end = address.data() + address.size();
  const auto parsed = std::from_chars(address.data() + colon + 1, end, port);
  if (parsed.ec != std::errc() || parsed.ptr != end || port < 1 || port > 65535) {
    return error("has no port in [1, 65535]");
  }
  endpoint.address = std::move(address);
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
