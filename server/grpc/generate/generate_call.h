// One Generate call of taopd.v1.Teacher: from the request to the engine's sequences, and from what
// they produce to messages.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "proto/taopd/v1/teacher.pb.h"
#include "server/grpc/calls/engine_calls.h"
#include "server/serving/serving_state.h"

namespace taopd {

// An accepted request, ready for the engine.
struct AdmittedGeneration {
  std::shared_ptr<const ServedModel> model;
  std::vector<InferenceRequest> requests;  // one per sequence
  ByteBudget::Reservation answer_memory;   // for `requests` and for messages that wait to be sent
};

// Thread-safe. Errors are those of AdmitScore (server/grpc/score_admission.h), and
// FAILED_PRECONDITION if the engine only scores.
absl::StatusOr<AdmittedGeneration> AdmitGeneration(const v1::GenerateRequest& request,
                                                   absl::Time deadline, const std::string& client,
                                                   ServingState& state);

// Call it in the handler, which returns the result.
StreamedCall* BeginGenerate(CallContext* context, const CallBytes* request,
                            const CallEnvironment& environment);

}  // namespace taopd
