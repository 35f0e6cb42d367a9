// Converts messages to and from their bytes. The services take their requests as bytes (gRPC's
// WithRawCallbackMethod classes): gRPC would parse them before a handler could look at them, and
// one message could take gigabytes. Any thread may call.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "common/base/status.h"
#include "common/wire/teacher_protocol.h"

namespace taopd {

// The types of a handler: what it gets, and what it returns for a call with one answer, for a call
// that streams its answers, and for a call that streams both ways.
using CallContext = grpc::CallbackServerContext;
using CallBytes = grpc::ByteBuffer;
using UnaryCall = grpc::ServerUnaryReactor;
using StreamedCall = grpc::ServerWriteReactor<CallBytes>;
using BidiCall = grpc::ServerBidiReactor<CallBytes, CallBytes>;

// The maximum size of a parsed request (parsed_size.h). A message of the largest size fits if it is
// one array or one text.
inline constexpr int64_t kMaxParsedBytes = 2 * kMaxMessageBytes + (64 << 10);

// Parses `bytes` and releases them, even on failure. Returns INVALID_ARGUMENT, naming the type, if
// the bytes are malformed or the message would take more than kMaxParsedBytes.
absl::Status ParseMessage(CallBytes* bytes, google::protobuf::Message* message);

// Parses the request of a handler, which gRPC gives as `bytes`.
template <typename Request>
absl::StatusOr<Request> ParseRequest(const CallBytes* bytes) {
  Request request;
  // The object is not const, because gRPC would otherwise keep the bytes until the call ends, and
  // count them against its memory for all connections.
  TAOPD_RETURN_IF_ERROR(ParseMessage(const_cast<CallBytes*>(bytes), &request));
  return request;
}

// REQUIRES: the message has less than 2 GiB.
CallBytes SerializeMessage(const google::protobuf::Message& message);

}  // namespace taopd
