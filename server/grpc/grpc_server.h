// The gRPC listener. It serves taopd.v1.Teacher, vLLM's services (server/grpc/vllm),
// grpc.health.v1 and, if enabled, taopd.v1.Policy and reflection. The health service answers for ""
// and "taopd.v1.Teacher" whether to send work, and for "liveness" whether the process is healthy;
// ServingState tells the two apart. This header does not include gRPC, so that files that see
// LibTorch can include it.
#pragma once

#include <absl/time/time.h>

#include <functional>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "server/metrics/server_metrics.h"
#include "server/security/api_keys.h"
#include "server/security/tls_files.h"
#include "server/serving/policy/policy_updates.h"
#include "server/serving/serving_state.h"

namespace taopd {

// Limits of the life and of the concurrent work of a connection.
struct GrpcConnectionLimits {
  // A connection without calls is closed after this time. Clients connect again by themselves.
  absl::Duration max_idle = absl::InfiniteDuration();
  // A connection is closed after this time (give or take 10 %), so that clients look for replicas
  // that have come since; its calls may take max_age_grace more.
  absl::Duration max_age = absl::InfiniteDuration();
  absl::Duration max_age_grace = absl::InfiniteDuration();
  // Maximum number of concurrent calls per connection; clients delay further calls.
  int max_concurrent_streams = 1024;
};

struct GrpcServerOptions {
  // Read at the start, and again within two seconds after a file has changed; bad files are
  // ignored.
  TlsPaths tls;
  // The keys, of which every call must show one unless it is for the health service. Null means
  // that no key is needed. Must outlive the server.
  const ApiKeys* keys = nullptr;
  // If true, grpc.reflection.v1 and v1alpha are served; they require a key, too.
  bool reflection = false;
  GrpcConnectionLimits limits;
  // If not null, taopd.v1.Policy is served. Must outlive the server.
  PolicyUpdates* policy = nullptr;
  // Called on a thread of the server when it can no longer accept connections.
  std::function<void()> on_failure = [] {};
};

class GrpcServer {
 public:
  virtual ~GrpcServer() = default;

  // Starts to listen; port 0 lets the system pick one. Returns UNAVAILABLE if the port is taken.
  // `state` and `metrics` must outlive the server.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Listen(const std::string& host, int port,
                                                            ServingState* state,
                                                            ServerMetrics* metrics,
                                                            const GrpcServerOptions& options = {});

  virtual int port() const = 0;
  // Makes the health service answer what the state says; it is NOT_SERVING at first. Any thread may
  // call; a call after Shutdown has no effect.
  virtual void UpdateHealth() = 0;
  // Ends each open stream when the work that it has accepted is done, waits until every answer has
  // left or `deadline` has passed, cancels the calls that are left, and closes the listener. Drain
  // the engine first: a call that waits in it ends no earlier than the deadline.
  virtual void Shutdown(absl::Time deadline) = 0;
};

}  // namespace taopd
