// The state that the handlers of all gRPC services share. If the server has keys, a handler runs
// only for calls that have shown one (server/grpc/key_check.h).
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <string>

#include "common/base/status.h"
#include "server/grpc/calls/message_bytes.h"
#include "server/metrics/server_metrics.h"
#include "server/security/api_keys.h"
#include "server/serving/call_tracker.h"
#include "server/serving/serving_state.h"
#include "server/serving/worker_pool.h"

namespace taopd {

// All of it outlives the services.
struct CallServices {
  ServingState* state;
  ServerMetrics* metrics;
  CallTracker* tracker;
  const ApiKeys* keys;  // null: none are asked for
  // Makes the answers, so that the engine's thread need not. Null: that thread does.
  WorkerPool* delivery;
};

// The address of the client, without the port, for logs: the connection's, or the one that a
// trusted proxy names. Any thread may call.
std::string AddressOf(const CallServices& services, const grpc::CallbackServerContext& context);

// The name of the client (server/net/client_name.h) for the engine's turns and for shares.
// Any thread may call.
std::string ClientOf(const CallServices& services, const grpc::CallbackServerContext& context);

// Runs `work`, records the request under `method`, and finishes with its status.
grpc::ServerUnaryReactor* FinishAtOnce(const CallServices& services,
                                       grpc::CallbackServerContext* context, const char* method,
                                       const std::function<absl::Status()>& work);

// A call that needs no engine: as FinishAtOnce, with `fill` for the message whose bytes are the
// answer. A `fill` that needs the request parses it; the others do not look at it.
template <typename Response>
grpc::ServerUnaryReactor* AnswerAtOnce(const CallServices& services,
                                       grpc::CallbackServerContext* context, const char* method,
                                       grpc::ByteBuffer* answer,
                                       const std::function<absl::Status(Response*)>& fill) {
  return FinishAtOnce(services, context, method, [&]() -> absl::Status {
    Response response;
    TAOPD_RETURN_IF_ERROR(fill(&response));
    *answer = SerializeMessage(response);
    return absl::OkStatus();
  });
}

}  // namespace taopd
