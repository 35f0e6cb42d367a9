// One Generate call of taopd.v1.Teacher: from the request to the engine's sequences, and from what
// they produce to messages.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>

#include "proto/taopd/v1/teacher.grpc.pb.h"
#include "server/grpc/generate/generation_run.h"
#include "server/grpc/generate/message_stream.h"
#include "server/metrics/server_metrics.h"
#include "server/serving/call_tracker.h"
#include "server/serving/serving_state.h"

namespace taopd {

inline constexpr uint32_t kMaxSequencesPerCall = 1024;

// An accepted request, ready for the engine.
struct AdmittedGeneration {
  std::shared_ptr<const ServedModel> model;
  std::vector<InferenceRequest> requests;  // one per sequence
  ByteBudget::Reservation answer_memory;   // of all messages that may wait to be sent
};

// Thread-safe. Errors are those of AdmitScore (server/grpc/score_admission.h), and
// FAILED_PRECONDITION if the engine only scores.
absl::StatusOr<AdmittedGeneration> AdmitGeneration(const v1::GenerateRequest& request,
                                                   absl::Time deadline, const std::string& client,
                                                   ServingState& state);

// Owns itself from Begin until gRPC's last reaction.
class GenerateCall : public std::enable_shared_from_this<GenerateCall> {
 public:
  // Called in the handler, which returns the result. All pointers outlive the call.
  static grpc::ServerWriteReactor<v1::GenerateResponse>* Begin(
      grpc::CallbackServerContext* context, const v1::GenerateRequest& request,
      ServingState* state, ServerMetrics* metrics, CallTracker* tracker);

 private:
  GenerateCall() = default;
  void Start(const v1::GenerateRequest& request, AdmittedGeneration admitted);

  std::shared_ptr<GenerateCall> self_;  // until the last reaction
  std::shared_ptr<MessageStream<v1::GenerateResponse>> stream_;
  std::shared_ptr<const ServedModel> model_;
  std::shared_ptr<GenerationRun> run_;  // null if the request was not accepted
  ByteBudget::Reservation answer_memory_;
};

}  // namespace taopd
