// What the handlers of all gRPC services share, and the check that each of them begins with.
#pragma once

#include <grpcpp/grpcpp.h>

#include "common/base/status.h"
#include "server/metrics/server_metrics.h"
#include "server/security/api_keys.h"
#include "server/serving/call_tracker.h"
#include "server/serving/serving_state.h"

namespace taopd {

// All of it outlives the services.
struct CallServices {
  ServingState* state;
  ServerMetrics* metrics;
  CallTracker* tracker;
  const ApiKeys* keys;  // null: none are asked for
};

// UNAUTHENTICATED, and counted under `method`, unless the call shows one of the keys or none is asked
// for. Any thread may call.
absl::Status CheckKey(const CallServices& services, const grpc::CallbackServerContext& context,
                      const char* method);

}  // namespace taopd
