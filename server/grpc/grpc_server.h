// The gRPC listener: taopd.v1.Teacher, grpc.health.v1 (services "" and "taopd.v1.Teacher") and
// reflection. This header includes no gRPC, so that the program's main file can see it.
#pragma once

#include <absl/time/time.h>

#include <memory>
#include <string>

#include "common/base/status.h"
#include "server/metrics/server_metrics.h"
#include "server/serving/serving_state.h"

namespace taopd {

class GrpcServer {
 public:
  virtual ~GrpcServer() = default;

  // Listens at once; port 0 lets the system pick. UNAVAILABLE when the port is taken. `state` and
  // `metrics` must outlive the server.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Listen(const std::string& host, int port,
                                                            ServingState* state,
                                                            ServerMetrics* metrics);

  virtual int port() const = 0;
  // What the health service answers; NOT_SERVING at first. Any thread; without effect after
  // Shutdown.
  virtual void SetServing(bool serving) = 0;
  // Ends open streams as their work is done, waits until every answer has left or `deadline` has
  // passed (calls that are left are then cancelled), and closes the listener. The engine must be
  // drained first: a call that it holds ends only by the deadline.
  virtual void Shutdown(absl::Time deadline) = 0;
};

// "host:port", with brackets around an IPv6 address.
std::string HostPort(const std::string& host, int port);

}  // namespace taopd
