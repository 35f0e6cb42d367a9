// The services vllm.Inference and vllm.Control, so that gateways and clients made for vLLM's gRPC
// can use the teacher. Handlers never block.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>

#include "proto/vllm/control.grpc.pb.h"
#include "proto/vllm/inference.grpc.pb.h"
#include "server/grpc/vllm/run_registry.h"

namespace taopd {

class VllmInferenceService final : public vllm::Inference::CallbackService {
 public:
  // `runs` outlives the service.
  VllmInferenceService(const CallServices& services, RunRegistry* runs)
      : services_(services), runs_(runs) {}

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* context,
                                     const vllm::GenerateRequest* request,
                                     vllm::GenerateResponse* response) override;
  // Tokens leave as they come, unless prompt log-probs are asked for: they must come first, and the
  // engine gives them with the last token.
  grpc::ServerWriteReactor<vllm::GenerateResponse>* GenerateStream(
      grpc::CallbackServerContext* context, const vllm::GenerateRequest* request) override;

 private:
  CallEnvironment EnvironmentOf(const char* method, const vllm::GenerateRequest& request) const;

  const CallServices services_;
  RunRegistry* const runs_;
};

class VllmControlService final : public vllm::Control::CallbackService {
 public:
  VllmControlService(const CallServices& services, RunRegistry* runs);

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const vllm::GetServerInfoRequest* request,
                                          vllm::ServerInfo* info) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const vllm::GetModelInfoRequest* request,
                                         vllm::ModelInfo* info) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const vllm::AbortRequest* request,
                                  vllm::AbortResponse* response) override;
  grpc::ServerUnaryReactor* IsPaused(grpc::CallbackServerContext* context,
                                     const vllm::IsPausedRequest* request,
                                     vllm::IsPausedResponse* response) override;
  grpc::ServerUnaryReactor* IsSleeping(grpc::CallbackServerContext* context,
                                       const vllm::IsSleepingRequest* request,
                                       vllm::IsSleepingResponse* response) override;
  grpc::ServerUnaryReactor* GetWeightVersion(grpc::CallbackServerContext* context,
                                             const vllm::GetWeightVersionRequest* request,
                                             vllm::GetWeightVersionResponse* response) override;

 private:
  const CallServices services_;
  RunRegistry* const runs_;
  const std::string instance_id_;  // another one for each process
};

}  // namespace taopd
