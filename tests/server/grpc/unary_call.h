// A call of any gRPC method, without its stub.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

namespace taopd::testing {

// A unary call with the message as bytes, and `authorizations` as its authorization metadata.
inline grpc::Status UnaryCall(const std::shared_ptr<grpc::Channel>& channel,
                              const std::string& method, const std::string& bytes,
                              const std::vector<std::string>& authorizations, std::string* answer) {
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
  std::vector<grpc::Slice> slices;
  if (status.ok()) response.Dump(&slices);
  answer->clear();
  for (const grpc::Slice& part : slices) {
    answer->append(reinterpret_cast<const char*>(part.begin()), part.size());
  }
  return status;
}

}  // namespace taopd::testing
