// The reflection services of the versions v1 and v1alpha, from the descriptors in this program:
// tools try one, then the other. They replace gRPC's own service, which requires no key and, once
// linked, is part of every server of the process.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>
#include <utility>
#include <vector>

#include "proto/grpc/reflection_v1.pb.h"
#include "server/grpc/calls/call_services.h"

namespace taopd {

// Larger requests are refused, because each request is repeated in its answer.
inline constexpr size_t kMaxReflectionRequestBytes = 4096;

// `services` is the answer to list_services. A request that cannot be answered gets an
// error_response: NOT_FOUND for an unknown name, INVALID_ARGUMENT for an empty or too large
// request. Thread-safe.
grpc::reflection::v1::ServerReflectionResponse AnswerReflection(
    const grpc::reflection::v1::ServerReflectionRequest& request,
    const std::vector<std::string>& services);

// Starts a call, which the handler returns. `names` must outlive it.
BidiCall* BeginReflection(const CallServices& services, CallContext* context,
                          const std::vector<std::string>* names);

// Version is grpc::reflection::v1::ServerReflection or v1alpha's: their messages are the same
// bytes.
template <typename Version>
class ReflectionService final : public Version::template WithRawCallbackMethod_ServerReflectionInfo<
                                    typename Version::Service> {
 public:
  // `names` are the services that are listed.
  ReflectionService(const CallServices& services, std::vector<std::string> names)
      : services_(services), names_(std::move(names)) {}

  BidiCall* ServerReflectionInfo(CallContext* context) override {
    return BeginReflection(services_, context, &names_);
  }

 private:
  const CallServices services_;
  const std::vector<std::string> names_;
};

}  // namespace taopd
