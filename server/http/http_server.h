// The HTTP listener. It serves the routes of server/http/routes/, with answers in vLLM's shapes.
// The front (server/http/front/front.h) reads and writes the bytes.
#pragma once

#include <absl/time/time.h>

#include <functional>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "server/http/front/front_handler.h"
#include "server/metrics/server_metrics.h"
#include "server/security/api_keys.h"
#include "server/security/tls_files.h"
#include "server/serving/serving_state.h"

namespace taopd {

struct HttpServerOptions {
  FrontLimits limits;
  // A second port, on the same host, for the probes alone; 0 means none, and -1 lets the system
  // pick one.
  int health_port = 0;
  // The certificate of the main port; null or not enabled for plain HTTP. The port of the probes is
  // always plain. Must outlive the server, and have been loaded.
  const TlsFiles* tls = nullptr;
  // The keys, of which every request must show one unless it is a probe. Null means that no key is
  // needed. Must outlive the server.
  const ApiKeys* keys = nullptr;
};

class HttpServer {
 public:
  virtual ~HttpServer() = default;

  // Starts to listen; port 0 lets the system pick one. Returns UNAVAILABLE if the port is taken.
  // `state` and `metrics` must outlive the server. The server's thread calls `on_failure` when it
  // can no longer accept connections. The process must ignore SIGPIPE.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Listen(const std::string& host, int port,
                                                            ServingState* state,
                                                            ServerMetrics* metrics,
                                                            std::function<void()> on_failure,
                                                            const HttpServerOptions& options = {});

  virtual int port() const = 0;
  virtual int health_port() const = 0;  // 0 if there is none
  // Waits until the requests that have begun are answered or `deadline` has passed, then closes the
  // listener and all connections.
  virtual void Shutdown(absl::Time deadline) = 0;
};

}  // namespace taopd
