// The trainer's HTTP pages:
//
//   GET  /                page for people: phase, time left, teacher, the report, buttons
//   GET  /report          the run's report (trainer/report/report.h) as it stands, made anew at
//   most
//                         every few seconds
//   GET  /status          JSON
//   GET  /metrics         Prometheus
//   GET  /healthz         "ok"
//   POST /pause, /resume, /save, /stop
//
// Every request must call the server by a name of its own (host_names.h); others get 421. What is
// refused gets a JSON object with the reason: {"error": "..."}.
//
// A POST is answered with 202 at once: the training loop does what it asks for when no step is in
// progress. It needs the header "X-Taopd-Control", which no page of another site can send without
// asking first, and the token, if there is one; its body, if it has one, is ignored. Connections
// that are slow or idle for a few seconds are closed.
#pragma once

#include <memory>
#include <string>

#include "common/base/status.h"
#include "trainer/control/control_server.h"
#include "trainer/control/run_state.h"

namespace taopd {

class StatusPages {
 public:
  // Listens on options.host and options.http_port and serves until the object is destroyed. Returns
  // UNAVAILABLE if the port is in use.
  static absl::StatusOr<std::unique_ptr<StatusPages>> Start(const ControlServerOptions& options,
                                                            RunState* state, ControlPages pages);
  virtual ~StatusPages() = default;
  virtual int port() const = 0;
};

// The page /status: one JSON object. Numbers that are not finite become null, and bytes that are
// not UTF-8 become U+FFFD.
std::string StatusJson(const RunStatus& status);

}  // namespace taopd
