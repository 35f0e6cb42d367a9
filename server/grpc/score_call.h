// One unary Score: admits the request, hands it to the engine, and finishes the call from the
// engine's callback.
//
// Ownership: the object deletes itself in OnDone. gRPC calls OnDone only after Finish, and Finish
// is the last thing that the engine's callback does with the object (or Start, if the request was
// not accepted). A cancelled call therefore lives until the engine has answered.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "proto/taopd/v1/teacher.grpc.pb.h"
#include "server/metrics/server_metrics.h"
#include "server/serving/call_tracker.h"
#include "server/serving/serving_state.h"

namespace taopd {

class ScoreCall final : public grpc::ServerUnaryReactor {
 public:
  // `context` and `response` are gRPC's and live until OnDone; the others outlive the call.
  ScoreCall(grpc::CallbackServerContext* context, v1::ScoreResponse* response, ServingState* state,
            ServerMetrics* metrics, CallTracker* tracker);

  // Called once, in the handler. gRPC runs no reaction before the handler has returned.
  void Start(const v1::ScoreRequest& request);

  void OnCancel() override;
  void OnDone() override;

 private:
  absl::Status Submit(const v1::ScoreRequest& request);
  void FinishWith(const absl::Status& status);

  grpc::CallbackServerContext* const context_;
  v1::ScoreResponse* const response_;
  ServingState* const state_;
  ServerMetrics* const metrics_;
  CallTracker* const tracker_;
  const absl::Time started_at_;
  std::string code_;  // written before Finish, read in OnDone
  std::string request_id_;
  // Written in Start, read by reactions.
  std::shared_ptr<const ServedModel> model_;
  ByteBudget::Reservation answer_memory_;
  RequestHandle handle_ = 0;
};

}  // namespace taopd
