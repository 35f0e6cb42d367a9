// The services vllm.Inference and vllm.Control, so that gateways and clients made for vLLM's gRPC
// can use the teacher. Handlers never block.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>

#include "common/base/random.h"
#include "proto/vllm/control.grpc.pb.h"
#include "proto/vllm/inference.grpc.pb.h"
#include "server/grpc/vllm/run_registry.h"

namespace taopd {

// The methods, which get and return the bytes of messages (calls/message_bytes.h).
using VllmInferenceMethods = vllm::Inference::WithRawCallbackMethod_Generate<
    vllm::Inference::WithRawCallbackMethod_GenerateStream<vllm::Inference::Service>>;
using VllmControlMethods = vllm::Control::WithRawCallbackMethod_GetServerInfo<
    vllm::Control::WithRawCallbackMethod_GetModelInfo<
        vllm::Control::WithRawCallbackMethod_Abort<vllm::Control::WithRawCallbackMethod_IsPaused<
            vllm::Control::WithRawCallbackMethod_IsSleeping<
                vllm::Control::WithRawCallbackMethod_GetWeightVersion<vllm::Control::Service>>>>>>;

class VllmInferenceService final : public VllmInferenceMethods {
 public:
  // `runs` must outlive the service.
  VllmInferenceService(const CallServices& services, RunRegistry* runs)
      : services_(services), runs_(runs) {}

  UnaryCall* Generate(CallContext* context, const CallBytes* request, CallBytes* answer) override;
  // Sends tokens as they come, unless prompt log-probs are requested: these must come first, and
  // the engine returns them with the last token.
  StreamedCall* GenerateStream(CallContext* context, const CallBytes* request) override;

 private:
  const CallServices services_;
  RunRegistry* const runs_;
};

class VllmControlService final : public VllmControlMethods {
 public:
  VllmControlService(const CallServices& services, RunRegistry* runs)
      : services_(services), runs_(runs), instance_id_(Concat(FreshBits())) {}

  UnaryCall* GetServerInfo(CallContext* context, const CallBytes* request,
                           CallBytes* answer) override;
  UnaryCall* GetModelInfo(CallContext* context, const CallBytes* request,
                          CallBytes* answer) override;
  UnaryCall* Abort(CallContext* context, const CallBytes* request, CallBytes* answer) override;
  UnaryCall* IsPaused(CallContext* context, const CallBytes* request, CallBytes* answer) override;
  UnaryCall* IsSleeping(CallContext* context, const CallBytes* request, CallBytes* answer) override;
  UnaryCall* GetWeightVersion(CallContext* context, const CallBytes* request,
                              CallBytes* answer) override;

 private:
  const CallServices services_;
  RunRegistry* const runs_;
  const std::string instance_id_;  // another one for each process
};

}  // namespace taopd
