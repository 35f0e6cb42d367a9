// Endpoints of teachers as users write them.
//
//   grpc://host:port            taopd-teacher
//   vllm+http://host:port/path  vLLM's API; the path before /v1 is optional, and so is the port
//   sglang+http://host:port     SGLang's API
//
// grpcs, vllm+https and sglang+https are the same over TLS. An IPv6 address stands in brackets.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

enum class TeacherProtocol { kGrpc, kVllm, kSglang };

struct TeacherEndpoint {
  std::string name;  // as the user wrote it
  TeacherProtocol protocol = TeacherProtocol::kGrpc;
  bool tls = false;
  std::string address;  // host:port
  std::string prefix;   // of HTTP: the path before /v1 or /generate, without a slash at its end

  // What gRPC calls it: "dns:///host:port" makes it use every address of the name.
  std::string GrpcTarget() const { return "dns:///" + address; }
  // What HTTP calls it, without a path: "https://host:port".
  std::string Url() const { return (tls ? "https://" : "http://") + address; }
};

// Returns INVALID_ARGUMENT, naming what is wrong, if the endpoint is malformed.
absl::StatusOr<TeacherEndpoint> ParseTeacherEndpoint(const std::string& text);

// The same for the endpoints of one teacher. Returns INVALID_ARGUMENT if the list is empty, names
// an endpoint twice or has endpoints of different protocols.
absl::StatusOr<std::vector<TeacherEndpoint>> ParseTeacherEndpoints(
    const std::vector<std::string>& endpoints);

// The content of the files that TeacherClientOptions names, in PEM format. Empty: not given.
struct TlsFiles {
  std::string ca;
  std::string cert;
  std::string key;
};

}  // namespace taopd
