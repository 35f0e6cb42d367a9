// The trainer as a daemon: gRPC control (proto/taopd/v1/trainer.proto, grpc.health.v1, reflection)
// on one port, and /status (JSON), /metrics (Prometheus) and /healthz over HTTP on another.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "trainer/control/run_state.h"

namespace taopd {

struct ControlServerOptions {
  std::string host = "127.0.0.1";
  // 0: the kernel picks a free port.
  int64_t http_port = 0;
  int64_t grpc_port = 0;
};

class ControlServer {
 public:
  // Listens on both ports and serves on threads of its own. `prometheus_text` renders the metrics
  // page (common/metrics/prometheus.h) on any thread. `state` and whatever `prometheus_text` refers
  // to must outlive the server. Returns UNAVAILABLE with host:port if a port is in use, and
  // INVALID_ARGUMENT if a port is out of range or the host is empty.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(
      const ControlServerOptions& options, RunState* state,
      std::function<std::string()> prometheus_text);
  // Stops serving.
  virtual ~ControlServer() = default;
  virtual int http_port() const = 0;
  virtual int grpc_port() const = 0;
};

}  // namespace taopd
