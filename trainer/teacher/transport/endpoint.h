// Endpoints of teachers as users write them: a scheme of teacher_protocols.h, which says what the
// server speaks, and an address. Over HTTP the port is optional, and so is the path before /v1. An
// IPv6 address is in brackets.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "trainer/net/server_address.h"

namespace taopd {

struct TeacherProtocol;

// The prefix is the path before /v1 or /generate.
struct TeacherEndpoint : ServerAddress {
  std::string name;                           // as the user wrote it
  const TeacherProtocol* protocol = nullptr;  // a row of the table

  // Returns gRPC's name of it: "dns:///host:port" makes it use every address of the name.
  std::string GrpcTarget() const { return "dns:///" + address; }
};

// "grpc://host:port (taopd-teacher; over TLS grpcs), ...", for messages and help texts.
std::string DescribeTeacherSchemes();

// Returns INVALID_ARGUMENT, naming what is wrong, if the endpoint is malformed.
absl::StatusOr<TeacherEndpoint> ParseTeacherEndpoint(const std::string& text);

// The same for the endpoints of one teacher. Returns INVALID_ARGUMENT if the list is empty, names
// an endpoint twice or has endpoints of different protocols.
absl::StatusOr<std::vector<TeacherEndpoint>> ParseTeacherEndpoints(
    const std::vector<std::string>& endpoints);

}  // namespace taopd
