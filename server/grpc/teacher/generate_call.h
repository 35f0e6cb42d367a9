// One Generate call of taopd.v1.Teacher: from the request to the engine's sequences, and from what
// they produce to messages.
#pragma once

#include <grpcpp/grpcpp.h>

#include "proto/taopd/v1/teacher.pb.h"
#include "server/grpc/calls/engine_calls.h"

namespace taopd {

// Thread-safe. Errors are those of AdmitScore (server/grpc/teacher/score_admission.h), and
// FAILED_PRECONDITION if the engine only scores.
absl::StatusOr<AdmittedRequest> AdmitGeneration(const v1::GenerateRequest& request,
                                                const Caller& caller, ServingState& state);

// Call it in the handler, which returns the result.
StreamedCall* BeginGenerate(CallContext* context, const CallBytes* request,
                            const CallEnvironment& environment);

}  // namespace taopd
