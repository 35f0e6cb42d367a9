// The reflection services of both versions, v1 and v1alpha: tools ask for one, then for the other.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>
#include <vector>

#include "proto/grpc/reflection_v1.grpc.pb.h"
#include "proto/grpc/reflection_v1alpha.grpc.pb.h"
#include "server/grpc/calls/call_services.h"

namespace taopd {

class ReflectionService final : public grpc::reflection::v1::ServerReflection::CallbackService {
 public:
  // `names` are the services that are listed. `services` outlives the object.
  ReflectionService(const CallServices& services, std::vector<std::string> names)
      : services_(services), names_(std::move(names)) {}

  grpc::ServerBidiReactor<grpc::reflection::v1::ServerReflectionRequest,
                          grpc::reflection::v1::ServerReflectionResponse>*
  ServerReflectionInfo(grpc::CallbackServerContext* context) override;

 private:
  const CallServices services_;
  const std::vector<std::string> names_;
};

class ReflectionServiceV1Alpha final
    : public grpc::reflection::v1alpha::ServerReflection::CallbackService {
 public:
  ReflectionServiceV1Alpha(const CallServices& services, std::vector<std::string> names)
      : services_(services), names_(std::move(names)) {}

  grpc::ServerBidiReactor<grpc::reflection::v1alpha::ServerReflectionRequest,
                          grpc::reflection::v1alpha::ServerReflectionResponse>*
  ServerReflectionInfo(grpc::CallbackServerContext* context) override;

 private:
  const CallServices services_;
  const std::vector<std::string> names_;
};

}  // namespace taopd
