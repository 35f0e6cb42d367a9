// "grpc://host:port" as users write it, and the gRPC target that it means.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

// "dns:///host:port" (every address of the name is used). IPv6 addresses stand in brackets.
// INVALID_ARGUMENT names what is wrong with the endpoint.
absl::StatusOr<std::string> GrpcTargetOfEndpoint(const std::string& endpoint);

// The same for a list; an empty list and an endpoint that stands twice are refused.
absl::StatusOr<std::vector<std::string>> GrpcTargetsOfEndpoints(
    const std::vector<std::string>& endpoints);

}  // namespace taopd
