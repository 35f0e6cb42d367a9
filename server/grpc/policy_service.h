// The service taopd.v1.Policy. Work that blocks is done on a thread of this object; gRPC calls the
// handlers on any of its threads.
#pragma once

#include "common/base/worker_pool.h"
#include "proto/taopd/v1/policy.grpc.pb.h"
#include "server/grpc/calls/call_services.h"
#include "server/serving/policy/policy_updates.h"

namespace taopd {

// The methods, which get and return the bytes of messages (calls/message_bytes.h).
using PolicyMethods =
    v1::Policy::WithRawCallbackMethod_GetPolicy<v1::Policy::WithRawCallbackMethod_SetWeights<
        v1::Policy::WithRawCallbackMethod_PutWeights<v1::Policy::Service>>>;

class PolicyService final : public PolicyMethods {
 public:
  // `updates` must outlive the service, and the service must outlive the gRPC server.
  PolicyService(const CallServices& services, PolicyUpdates* updates)
      : services_(services), updates_(updates) {}

  UnaryCall* GetPolicy(CallContext* context, const CallBytes* request, CallBytes* answer) override;
  UnaryCall* SetWeights(CallContext* context, const CallBytes* request, CallBytes* answer) override;
  UnaryCall* PutWeights(CallContext* context, const CallBytes* request, CallBytes* answer) override;

 private:
  const CallServices services_;
  PolicyUpdates* const updates_;
  WorkerPool worker_{/*max_threads=*/1};
};

}  // namespace taopd
