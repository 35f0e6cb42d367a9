// Answers of gRPC's reflection protocol, from the descriptors that this program was compiled with.
// Thread-safe. gRPC's own reflection service asks for no key and, once linked, is part of every
// server of the process; hence this one.
#pragma once

#include <string>
#include <vector>

#include "proto/grpc/reflection_v1.pb.h"

namespace taopd {

// Larger requests are refused: each is repeated in its answer.
inline constexpr size_t kMaxReflectionRequestBytes = 4096;

// `services` are what list_services gives. A request that cannot be answered gets an
// error_response: NOT_FOUND for an unknown name, INVALID_ARGUMENT for one that asks for nothing or
// is too large.
grpc::reflection::v1::ServerReflectionResponse AnswerReflection(
    const grpc::reflection::v1::ServerReflectionRequest& request,
    const std::vector<std::string>& services);

}  // namespace taopd
