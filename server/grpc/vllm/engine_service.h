// The service vllm.grpc.engine.VllmEngine, by which gateways that were made for "vllm serve --grpc"
// can drive the teacher. Handlers never block.
#pragma once

#include <grpcpp/grpcpp.h>

#include "proto/vllm/engine.grpc.pb.h"
#include "server/grpc/vllm/run_registry.h"

namespace taopd {

// The methods, which get and return the bytes of messages (calls/message_bytes.h).
using VllmEngineMethods = vllm::grpc::engine::VllmEngine::WithRawCallbackMethod_Generate<
    vllm::grpc::engine::VllmEngine::WithRawCallbackMethod_HealthCheck<
        vllm::grpc::engine::VllmEngine::WithRawCallbackMethod_Abort<
            vllm::grpc::engine::VllmEngine::WithRawCallbackMethod_GetModelInfo<
                vllm::grpc::engine::VllmEngine::WithRawCallbackMethod_GetServerInfo<
                    vllm::grpc::engine::VllmEngine::WithRawCallbackMethod_GetLoads<
                        vllm::grpc::engine::VllmEngine::Service>>>>>>;

class VllmEngineService final : public VllmEngineMethods {
 public:
  // `runs` must outlive the service.
  VllmEngineService(const CallServices& services, RunRegistry* runs)
      : services_(services), runs_(runs), started_at_(services.state->clock()->Now()) {}

  // A streamed answer with prompt log-probs has one chunk per sequence: they must come first, and
  // the engine returns them with the last token.
  StreamedCall* Generate(CallContext* context, const CallBytes* request) override;
  UnaryCall* HealthCheck(CallContext* context, const CallBytes* request,
                         CallBytes* answer) override;
  UnaryCall* Abort(CallContext* context, const CallBytes* request, CallBytes* answer) override;
  UnaryCall* GetModelInfo(CallContext* context, const CallBytes* request,
                          CallBytes* answer) override;
  UnaryCall* GetServerInfo(CallContext* context, const CallBytes* request,
                           CallBytes* answer) override;
  UnaryCall* GetLoads(CallContext* context, const CallBytes* request, CallBytes* answer) override;

 private:
  const CallServices services_;
  RunRegistry* const runs_;
  const absl::Time started_at_;
};

}  // namespace taopd
