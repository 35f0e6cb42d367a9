// The state that the handlers of all gRPC services share, and their view of gRPC's own types. If
// the server has keys, a handler runs only for calls that have shown one (KeyCheck in
// grpc_server.cc). Any thread may call the functions.
#pragma once

#include <absl/time/time.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <map>
#include <string>

#include "common/base/status.h"
#include "common/base/worker_pool.h"
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
  const ApiKeys* keys;  // null: none are required
  // The one thread that turns the engine's results into messages and hands them to gRPC. Both copy
  // the whole answer, which would hold up the engine's thread. If null, the engine's thread does
  // both.
  WorkerPool* delivery;
};

// Returns the header's value. It is empty without the header, and if there are several, which a
// proxy could read differently.
std::string OnlyValueOf(const std::multimap<grpc::string_ref, grpc::string_ref>& headers,
                        const char* name);

// Returns the call's deadline, or InfiniteFuture if the client has set none.
absl::Time DeadlineOf(const CallContext& context);

// Returns the address in gRPC's name of a peer: "127.0.0.1" of "ipv4:127.0.0.1:4000" and of
// "unix-abstract:taopd/12-1/127.0.0.1", the name that GrpcGuard gives a connection; "::1" of
// "ipv6:%5B::1%5D:4000". Text of another form is returned whole.
std::string PeerAddress(const std::string& peer);

// The time that a client should wait before it sends a refused request again.
inline constexpr int kRetryPushbackMs = 500;

// If the status is RESOURCE_EXHAUSTED, tells the client how long to wait before it tries again
// (kRetryPushbackKey). Call it before the call is finished.
void AddRetryPushback(const absl::Status& status, CallContext* context);

grpc::Status ToGrpcStatus(const absl::Status& status);
// Returns "OK", "INVALID_ARGUMENT", ...
std::string StatusCodeName(const absl::Status& status);

// Returns the address of the client, without the port, for logs: the connection's, or the one that
// a trusted proxy names.
std::string AddressOf(const CallServices& services, const CallContext& context);

// Returns the name of the client (server/net/client_name.h) for the engine's turns and for shares.
std::string ClientOf(const CallServices& services, const CallContext& context);

// gRPC runs OnDone after OnCancel has returned, on whichever thread. A counter inside of its
// library orders the two, which ThreadSanitizer does not see: a reactor that frees in OnDone what
// OnCancel uses repeats the order here.
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
UnaryCall* FinishAtOnce(const CallServices& services, CallContext* context, const char* method,
                        const std::function<absl::Status()>& work);

// A call that needs no engine: as FinishAtOnce, with `fill` for the message whose bytes are the
// answer. A `fill` that needs the request parses it; the others do not look at it.
template <typename Response>
UnaryCall* AnswerAtOnce(const CallServices& services, CallContext* context, const char* method,
                        CallBytes* answer, const std::function<absl::Status(Response*)>& fill) {
  return FinishAtOnce(services, context, method, [&]() -> absl::Status {
    Response response;
    TAOPD_RETURN_IF_ERROR(fill(&response));
    *answer = SerializeMessage(response);
    return absl::OkStatus();
  });
}

// Does the same for an answer that describes the served model: `fill(model, response)`. Without a
// model that accepts work, the call ends with the reason.
template <typename Response, typename Fill>
UnaryCall* DescribeModel(const CallServices& services, CallContext* context, const char* method,
                         CallBytes* answer, const Fill& fill) {
  return AnswerAtOnce<Response>(services, context, method, answer, [&](auto* out) -> absl::Status {
    TAOPD_ASSIGN_OR_RETURN(const auto model, services.state->Admit());
    fill(*model, out);
    return absl::OkStatus();
  });
}

}  // namespace taopd
