// The trainer's HTTP pages: /status (JSON), /metrics (Prometheus) and /healthz. They answer GET
// only, read no bodies and close a connection that is slow or idle for a few seconds.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "trainer/control/run_state.h"

namespace taopd {

class StatusPages {
 public:
  // Listens and serves until the object is destroyed. Returns UNAVAILABLE if the port is in use.
  static absl::StatusOr<std::unique_ptr<StatusPages>> Start(
      const std::string& host, int port, const RunState* state,
      std::function<std::string()> prometheus_text);
  virtual ~StatusPages() = default;
  virtual int port() const = 0;
};

// The page /status: one JSON object. Numbers that are not finite become null, and bytes that are
// not UTF-8 become U+FFFD.
std::string StatusJson(const RunStatus& status);

}  // namespace taopd
