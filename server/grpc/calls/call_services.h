// The state and the functions that the handlers of all gRPC services share. If the server has keys,
// a handler runs only for calls that have shown one (KeyCheck in grpc_server.cc). Any thread may
// call the functions.
#pragma once

#include <absl/time/time.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <map>
#include <string>

#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "server/generation/generation_request.h"
#include "server/grpc/calls/message_bytes.h"
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
  const ApiKeys* keys;  // null if none are required
  // The one thread that turns the engine's results into messages and hands them to gRPC. Both steps
  // copy the whole answer, which would hold up the engine's thread. If null, the engine's thread
  // does both.
  WorkerPool* delivery;
};

// Returns the header's value. It is empty if the header is missing or occurs more than once, which
// a proxy could read differently.
std::string OnlyValueOf(const std::multimap<grpc::string_ref, grpc::string_ref>& headers,
                        const char* name);

// Returns the address in gRPC's name of a peer: "127.0.0.1" for
// "unix-abstract:taopd/12-1/127.0.0.1". GrpcGuard gives each connection such a name.
std::string PeerAddress(const std::string& peer);

// If the status is RESOURCE_EXHAUSTED, tells the client how long to wait before it tries again
// (kRetryPushbackKey). Call it before the call is finished.
void AddRetryPushback(const absl::Status& status, CallContext* context);

grpc::Status ToGrpcStatus(const absl::Status& status);

// Returns the address of the client, without the port, for logs: the connection's, or the one that
// a trusted proxy names.
std::string AddressOf(const CallServices& services, const CallContext& context);

// Returns the client's name (server/net/client_name.h).
std::string ClientOf(const CallServices& services, const CallContext& context);
// Returns the call's deadline, which is InfiniteFuture if the client has set none.
absl::Time DeadlineOf(const CallContext& context);
// Returns the client with its name and the call's deadline.
Caller CallerOf(const CallServices& services, const CallContext& context);

// Records a call, or a message of one, that began at `started_at` and has ended with `status`.
void RecordCall(const CallServices& services, const char* method, const absl::Status& status,
                absl::Time started_at, const std::string& address,
                const std::string& request_id = "");

// gRPC runs OnDone, on any thread, after OnCancel has returned. A counter inside its library orders
// the two, but ThreadSanitizer does not see that, so a reactor that frees in OnDone what OnCancel
// uses states the order again here.
class ReactionOrder {
 public:
  // Call it last in OnCancel.
  void CancelEnds() { cancel_ended_.store(true, std::memory_order_release); }
  // Call it first in OnDone. It does not wait, because a call that is not cancelled has no
  // OnCancel.
  void DoneBegins() const { (void)cancel_ended_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> cancel_ended_{false};
};

// Runs `work`, records the request under `method`, and finishes with its status.
UnaryCall* FinishInHandler(const CallServices& services, CallContext* context, const char* method,
                           const std::function<absl::Status()>& work);

// Does the same for a call with an answer. `fill` sets the message whose bytes are the answer, or
// returns why there is none; it parses the request itself if it needs it.
template <typename Response>
UnaryCall* AnswerInHandler(const CallServices& services, CallContext* context, const char* method,
                           CallBytes* answer, const std::function<absl::Status(Response*)>& fill) {
  return FinishInHandler(services, context, method, [&]() -> absl::Status {
    Response response;
    TAOPD_RETURN_IF_ERROR(fill(&response));
    *answer = SerializeMessage(response);
    return absl::OkStatus();
  });
}

// Does the same for an answer that describes the served model: `fill(model, response)`. If no work
// is accepted, the call ends with the reason.
template <typename Response, typename Fill>
UnaryCall* DescribeModel(const CallServices& services, CallContext* context, const char* method,
                         CallBytes* answer, const Fill& fill) {
  return AnswerInHandler<Response>(
      services, context, method, answer, [&](auto* out) -> absl::Status {
        TAOPD_ASSIGN_OR_RETURN(const auto model, services.state->Admit());
        fill(*model, out);
        return absl::OkStatus();
      });
}

}  // namespace taopd
