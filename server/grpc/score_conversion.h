// Between the wire (proto/taopd/v1/teacher.proto) and the engine. Everything a client sends is
// checked here, before the engine sees it.
#pragma once

#include <absl/time/time.h>
#include <grpcpp/support/status.h>

#include "common/engine/engine.h"
#include "proto/taopd/v1/teacher.pb.h"
#include "server/serving/serving_state.h"

namespace taopd {

// Largest message in both directions.
inline constexpr int kMaxMessageBytes = 64 << 20;
inline constexpr uint32_t kProtocolVersion = 1;

// INVALID_ARGUMENT names the field, the value and the limit; FAILED_PRECONDITION: another revision.
absl::StatusOr<InferenceRequest> ToInferenceRequest(const v1::ScoreRequest& request,
                                                    const ServedModel& model, absl::Time deadline);

// Memory that the request's answer takes until it is sent: the engine's arrays and the message.
int64_t AnswerMemoryBytes(const v1::ScoreRequest& request, const EngineLimits& limits);

v1::ScoreResponse ToScoreResponse(const std::string& request_id, const std::string& revision,
                                  const ScoreRows& rows);

v1::GetTeacherInfoResponse ToTeacherInfo(const ServedModel& model);

grpc::Status ToGrpcStatus(const absl::Status& status);
// "OK", "INVALID_ARGUMENT", ...
std::string StatusCodeName(const absl::Status& status);

}  // namespace taopd
