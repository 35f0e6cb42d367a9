// Translates endpoints as users write them, "grpc://host:port", into gRPC's targets.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

// Returns "dns:///host:port", which makes gRPC use every address of the name. An IPv6 address
// stands in brackets. Returns INVALID_ARGUMENT, naming what is wrong, if the endpoint is malformed.
absl::StatusOr<std::string> GrpcTargetOfEndpoint(const std::string& endpoint);

// The same for a list. An empty list, or one that names an endpoint twice, is INVALID_ARGUMENT.
absl::StatusOr<std::vector<std::string>> GrpcTargetsOfEndpoints(
    const std::vector<std::string>& endpoints);

}  // namespace taopd
