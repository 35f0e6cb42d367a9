// The gRPC service taopd.v1.Trainer on top of RunState. No call blocks a thread of gRPC: the
// training loop answers SaveCheckpoint.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>
#include <utility>

#include "proto/taopd/v1/trainer.grpc.pb.h"
#include "trainer/control/run_state.h"

namespace taopd {

class ControlService final : public v1::Trainer::CallbackService {
 public:
  // Calls that change something must bring `token`, unless it is empty (ControlServerOptions).
  ControlService(RunState* state, std::string token) : state_(state), token_(std::move(token)) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* reply) override;
  grpc::ServerUnaryReactor* Pause(grpc::CallbackServerContext* context,
                                  const v1::PauseRequest* request,
                                  v1::PauseResponse* reply) override;
  grpc::ServerUnaryReactor* Resume(grpc::CallbackServerContext* context,
                                   const v1::ResumeRequest* request,
                                   v1::ResumeResponse* reply) override;
  grpc::ServerUnaryReactor* SaveCheckpoint(grpc::CallbackServerContext* context,
                                           const v1::SaveCheckpointRequest* request,
                                           v1::SaveCheckpointResponse* reply) override;
  grpc::ServerUnaryReactor* Stop(grpc::CallbackServerContext* context,
                                 const v1::StopRequest* request, v1::StopResponse* reply) override;

 private:
  bool IsAllowed(const grpc::CallbackServerContext& context) const;

  RunState* const state_;
  const std::string token_;
};

}  // namespace taopd
