// The trainer as a daemon, over HTTP:
//
//   GET  /                page for people: phase, time left, teacher, the report, buttons
//   GET  /report          the run's report (trainer/report/report.h), drawn again at most every
//                         5 s
//   GET  /status          JSON
//   GET  /metrics         Prometheus
//   GET  /healthz         "ok", or 503 with the reason why the run should be started again
//   POST /pause, /resume, /save, /stop
//
// Every request must call the server by a name of its own (host_names.h); others get 421. What is
// refused gets a JSON object with the reason: {"error": "..."}.
//
// A POST is answered with 202 immediately. The training loop carries it out later: a stop as soon
// as the step allows, the others between two steps. It needs the header "X-Taopd-Control", which no
// page of another site can send without a preflight request, and the token, if there is one; its
// body, if it has one, is ignored. Connections that are slow or idle for a few seconds are closed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "trainer/control/run_control.h"

namespace taopd {

struct ControlServerOptions {
  std::string host = "127.0.0.1";
  int64_t http_port = 0;  // 0: the kernel picks a free port
  // If it is not empty, a request to pause, resume, save or stop must have it: the header
  // "Authorization: Bearer TOKEN". Reading needs none.
  std::string token = {};
  // Host names of HTTP requests that are answered, besides localhost, the address that a request
  // came to and this machine's own names (host_names.h).
  std::vector<std::string> allowed_hosts = {};
};

// The pages whose contents other parts make. Called on the server's threads; what they refer to
// must outlive the server.
struct ControlPages {
  std::function<std::string()> prometheus_text;              // /metrics; may be empty
  std::function<absl::StatusOr<std::string>()> report_html;  // /report; may be empty
  std::function<absl::Status()> health;                      // /healthz; empty: always OK
};

class ControlServer {
 public:
  // Listens and serves on threads of its own. `control` must outlive the server. Returns
  // UNAVAILABLE with host:port if it cannot listen there, and INVALID_ARGUMENT if the port is out
  // of range or the host is empty.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(const ControlServerOptions& options,
                                                              RunControl* control,
                                                              ControlPages pages);
  // Stops serving.
  virtual ~ControlServer() = default;
  virtual int http_port() const = 0;
};

// The page /status: one JSON object. Numbers that are not finite become null, and bytes that are
// not UTF-8 become U+FFFD.
std::string StatusJson(const RunStatus& status);

}  // namespace taopd
