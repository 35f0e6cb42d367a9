// Answers requests of gRPC's reflection protocol from the descriptors in this program. Thread-safe.
// It replaces gRPC's own reflection service, which requires no key and, once linked, is part of
// every server of the process.
#pragma once

#include <string>
#include <vector>

#include "proto/grpc/reflection_v1.pb.h"

namespace taopd {

// Larger requests are refused, because each request is repeated in its answer.
inline constexpr size_t kMaxReflectionRequestBytes = 4096;

// `services` is the answer to list_services. A request that cannot be answered gets an
// error_response: NOT_FOUND for an unknown name, INVALID_ARGUMENT for an empty or too large
// request.
grpc::reflection::v1::ServerReflectionResponse AnswerReflection(
    const grpc::reflection::v1::ServerReflectionRequest& request,
    const std::vector<std::string>& services);

}  // namespace taopd
