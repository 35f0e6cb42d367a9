// The reflection services of the versions v1 and v1alpha: tools try one, then the other.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>
#include <utility>
#include <vector>

#include "server/grpc/calls/call_services.h"

namespace taopd {

// Starts a call, which the handler returns. `names` must outlive it.
BidiCall* BeginReflection(const CallServices& services, CallContext* context,
                          const std::vector<std::string>* names);

// Version is grpc::reflection::v1::ServerReflection or v1alpha's: their messages are the same
// bytes.
template <typename Version>
class ReflectionService final : public Version::template WithRawCallbackMethod_ServerReflectionInfo<
                                    typename Version::Service> {
 public:
  // `names` are the listed services. `services` must outlive the object.
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
