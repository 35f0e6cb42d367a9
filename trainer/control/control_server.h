// The trainer as a daemon: gRPC control (proto/taopd/v1/trainer.proto, grpc.health.v1, reflection)
// on one port; on another, over HTTP, a page that shows the run as it goes, /status (JSON),
// /metrics (Prometheus), /healthz and POST requests for pause, resume, save and stop
// (status_page.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "trainer/control/run_state.h"

namespace taopd {

struct ControlServerOptions {
  std::string host = "127.0.0.1";
  // 0: the kernel picks a free port.
  int64_t http_port = 0;
  int64_t grpc_port = 0;
  // If it is not empty, whoever asks for pause, resume, save or stop must bring it: the header
  // (over gRPC, the metadata) "authorization: Bearer TOKEN". Reading needs none.
  std::string token = {};
  // Host names of HTTP requests that are answered beside localhost, the address that a request came
  // to and this machine's own names (host_names.h).
  std::vector<std::string> allowed_hosts = {};
};

// The pages whose contents others know. Called on the server's threads; what they refer to must
// outlive the server.
struct ControlPages {
  std::function<std::string()> prometheus_text;              // /metrics; may be empty
  std::function<absl::StatusOr<std::string>()> report_html;  // /report; may be empty
};

class ControlServer {
 public:
  // Listens on both ports and serves on threads of its own. `state` must outlive the server.
  // Returns UNAVAILABLE with host:port if a port is in use, and INVALID_ARGUMENT if a port is out
  // of range or the host is empty.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(const ControlServerOptions& options,
                                                              RunState* state, ControlPages pages);
  // Stops serving.
  virtual ~ControlServer() = default;
  virtual int http_port() const = 0;
  virtual int grpc_port() const = 0;
};

}  // namespace taopd
