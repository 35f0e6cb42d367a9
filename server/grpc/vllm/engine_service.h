// The service vllm.grpc.engine.VllmEngine, by which gateways that were made for "vllm serve --grpc"
// can drive the teacher. Handlers never block.
#pragma once

#include <grpcpp/grpcpp.h>

#include "proto/vllm/engine.grpc.pb.h"
#include "server/grpc/vllm/run_registry.h"

namespace taopd {

class VllmEngineService final : public vllm::grpc::engine::VllmEngine::CallbackService {
 public:
  // `runs` outlives the service.
  VllmEngineService(const CallServices& services, RunRegistry* runs);

  // A streamed answer with prompt log-probs has one chunk per sequence: they must come first, and
  // the engine gives them with the last token.
  grpc::ServerWriteReactor<vllm::grpc::engine::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context,
      const vllm::grpc::engine::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* HealthCheck(grpc::CallbackServerContext* context,
                                        const vllm::grpc::engine::HealthCheckRequest* request,
                                        vllm::grpc::engine::HealthCheckResponse* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const vllm::grpc::engine::AbortRequest* request,
                                  vllm::grpc::engine::AbortResponse* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(
      grpc::CallbackServerContext* context, const vllm::grpc::engine::GetModelInfoRequest* request,
      vllm::grpc::engine::GetModelInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(
      grpc::CallbackServerContext* context, const vllm::grpc::engine::GetServerInfoRequest* request,
      vllm::grpc::engine::GetServerInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetLoads(grpc::CallbackServerContext* context,
                                     const vllm::grpc::engine::GetLoadsRequest* request,
                                     vllm::grpc::engine::GetLoadsResponse* response) override;

 private:
  const CallServices services_;
  RunRegistry* const runs_;
  const absl::Time started_at_;
};

}  // namespace taopd
