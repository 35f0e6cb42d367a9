// The methods of every service that is written here, from the services' own descriptors: one that
// is added is in the list.
#pragma once

#include <google/protobuf/descriptor.h>

#include <string>
#include <vector>

#include "proto/grpc/reflection_v1.pb.h"
#include "proto/grpc/reflection_v1alpha.pb.h"
#include "proto/taopd/v1/teacher.pb.h"
#include "proto/vllm/control.pb.h"
#include "proto/vllm/engine.pb.h"
#include "proto/vllm/inference.pb.h"

namespace taopd::testing {

inline std::vector<const google::protobuf::MethodDescriptor*> EveryMethod() {
  std::vector<const google::protobuf::MethodDescriptor*> methods;
  for (const auto* file :
       {v1::ScoreRequest::descriptor()->file(), vllm::GenerateRequest::descriptor()->file(),
        vllm::AbortRequest::descriptor()->file(),
        vllm::grpc::engine::AbortRequest::descriptor()->file(),
        grpc::reflection::v1::ErrorResponse::descriptor()->file(),
        grpc::reflection::v1alpha::ErrorResponse::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      const auto* service = file->service(s);
      for (int m = 0; m < service->method_count(); ++m) methods.push_back(service->method(m));
    }
  }
  return methods;
}

// Returns the name that a call has for the method: "/taopd.v1.Teacher/Score".
inline std::string PathOf(const google::protobuf::MethodDescriptor& method) {
  return "/" + method.service()->full_name() + "/" + method.name();
}

}  // namespace taopd::testing
