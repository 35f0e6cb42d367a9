// Decides whether a score request is accepted, reserves the memory of its answer before anything is
// queued, and makes that answer.
#pragma once

#include <string>

#include "proto/taopd/v1/teacher.pb.h"
#include "server/grpc/calls/engine_calls.h"

namespace taopd {

// Thread-safe. Errors:
//   UNAVAILABLE          no work is accepted (ServingState::Admit);
//   INVALID_ARGUMENT     a field is out of range, or the answer would not fit into one message; the
//                        text names the field, the value and the limit;
//   FAILED_PRECONDITION  another revision is served than the request expects;
//   RESOURCE_EXHAUSTED   requests and answers take all the memory that they may take together, or
//                        those of this client their share.
absl::StatusOr<AdmittedRequest> AdmitScore(const v1::ScoreRequest& request, const Caller& caller,
                                           ServingState& state);

// Checks the fields that all requests of taopd.v1.Teacher have, with the errors of AdmitScore.
absl::Status CheckIdAndRevision(const std::string& request_id, const std::string& expected_revision,
                                const ServedModel& model);

v1::ScoreResponse ToScoreResponse(const std::string& request_id, const std::string& revision,
                                  const ScoreRows& rows);

}  // namespace taopd
