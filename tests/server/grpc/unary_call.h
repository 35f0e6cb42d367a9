// A call of any gRPC method, without its stub.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/server/grpc/grpc_status.h"

namespace taopd::testing {

// A unary call with the message as bytes, and `authorizations` as its authorization metadata.
// Returns the answer.
inline absl::StatusOr<std::string> UnaryCall(const std::shared_ptr<grpc::Channel>& channel,
                                             const std::string& method, const std::string& bytes,
                                             const std::vector<std::string>& authorizations = {}) {
  grpc::Slice slice(bytes);
  grpc::ByteBuffer request(&slice, 1), response;
  grpc::ClientContext context;
  for (const std::string& value : authorizations) context.AddMetadata("authorization", value);
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
  call->StartCall();
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag;
  bool ok;
  queue.Next(&tag, &ok);
  TAOPD_RETURN_IF_ERROR(StatusOf(status));
  std::vector<grpc::Slice> slices;
  response.Dump(&slices);
  std::string answer;
  for (const grpc::Slice& part : slices)
    answer.append(reinterpret_cast<const char*>(part.begin()), part.size());
  return answer;
}

}  // namespace taopd::testing
