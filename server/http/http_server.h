// The HTTP listener: GET /health, /ping, /version, /v1/models, /metrics and POST /v1/completions,
// in vLLM's shapes. This header includes no cpp-httplib.
#pragma once

#include <absl/time/time.h>

#include <functional>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "server/metrics/server_metrics.h"
#include "server/serving/serving_state.h"

namespace taopd {

class HttpServer {
 public:
  virtual ~HttpServer() = default;

  // Listens at once; port 0 lets the system pick. UNAVAILABLE when the port is taken. `state` and
  // `metrics` must outlive the server. `on_failure` is called, from the server's thread, when it
  // can no longer accept connections.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Listen(const std::string& host, int port,
                                                            ServingState* state,
                                                            ServerMetrics* metrics,
                                                            std::function<void()> on_failure);

  virtual int port() const = 0;
  // Waits until requests that have begun are answered or `deadline` has passed, then closes
  // everything.
  virtual void Shutdown(absl::Time deadline) = 0;
};

}  // namespace taopd
