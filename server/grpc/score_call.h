// One unary Score: converts the request, hands it to the engine, and finishes the call from the
// engine's callback.
//
// Ownership: the object deletes itself in OnDone. gRPC calls OnDone only after Finish, and Finish is
// called in one place: by the engine's callback, as the last thing that it does with the object (or
// by Start, if the engine was not asked). A cancelled call therefore lives until the engine answers.
#pragma once

#include <absl/synchronization/mutex.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "proto/taopd/v1/teacher.grpc.pb.h"
#include "server/metrics/server_metrics.h"
#include "server/serving/call_tracker.h"
#include "server/serving/serving_state.h"

namespace taopd {

// How long a client should wait before it sends a refused request again.
inline constexpr char kRetryPushbackKey[] = "grpc-retry-pushback-ms";
inline constexpr int kRetryPushbackMs = 500;

absl::Time DeadlineOf(const grpc::CallbackServerContext& context);
absl::Status MessageMemoryExhausted(ServingState& state);

class ScoreCall final : public grpc::ServerUnaryReactor {
 public:
  ScoreCall(grpc::CallbackServerContext* context, v1::ScoreResponse* response, ServingState* state,
            ServerMetrics* metrics, CallTracker* tracker);

  // Called once, in the handler: gRPC binds the reactor after the handler returned, so OnDone
  // cannot run before Start has.
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
  std::shared_ptr<const ServedModel> model_;
  ByteBudget::Reservation memory_;

  absl::Mutex mutex_;
  RequestHandle handle_ ABSL_GUARDED_BY(mutex_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace taopd
