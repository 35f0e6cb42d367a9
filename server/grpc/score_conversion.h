// Translates between the wire (proto/taopd/v1/teacher.proto and gRPC's own types) and the engine.
// Nothing here judges: score_admission.h decides whether a request is accepted. Pure functions, any
// thread.
#pragma once

#include <absl/time/time.h>
#include <grpcpp/support/status.h>

#include <string>

#include "common/engine/engine.h"
#include "proto/taopd/v1/teacher.pb.h"
#include "server/grpc/calls/message_bytes.h"
#include "server/serving/serving_state.h"

namespace taopd {

// The request as the engine takes it. A temperature of 0 becomes 1. Returns INVALID_ARGUMENT for a
// number that the engine's types cannot hold, naming the field and the value; every other check is
// left to ValidateRequest.
absl::StatusOr<InferenceRequest> ToInferenceRequest(const v1::ScoreRequest& request,
                                                    absl::Time deadline);

v1::ScoreResponse ToScoreResponse(const std::string& request_id, const std::string& revision,
                                  const ScoreRows& rows);

v1::GetTeacherInfoResponse ToTeacherInfo(const ServedModel& model);

// InfiniteFuture if the client has set no deadline.
absl::Time DeadlineOf(const CallContext& context);

// The address of a peer as gRPC writes it: "127.0.0.1" of "unix-abstract:taopd/12-1/127.0.0.1", the
// name that a connection has from GrpcGuard, and of "ipv4:127.0.0.1:4000"; "::1" of
// "ipv6:%5B::1%5D:4000". Text of another form is returned whole.
std::string PeerAddress(const std::string& peer);

// The time that a client should wait before it sends a refused request again.
inline constexpr int kRetryPushbackMs = 500;

// If the status is RESOURCE_EXHAUSTED, tells the client how long to wait before it tries again
// (kRetryPushbackKey). Call it before the call is finished.
void AddRetryPushback(const absl::Status& status, CallContext* context);

grpc::Status ToGrpcStatus(const absl::Status& status);
// "OK", "INVALID_ARGUMENT", ...
std::string StatusCodeName(const absl::Status& status);

}  // namespace taopd
