// The trainer's HTTP pages: /status (JSON), /metrics (Prometheus), /healthz. Small and short of
// patience: they answer GET, keep no connection for long and read no bodies.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "trainer/control/control_server.h"

namespace taopd {

class StatusPages {
 public:
  // Errors as ControlServer::Start.
  static absl::StatusOr<std::unique_ptr<StatusPages>> Start(
      const std::string& host, int port, const RunState* state,
      std::function<std::string()> prometheus_text);
  virtual ~StatusPages() = default;
  virtual int port() const = 0;
};

// One JSON object; numbers that are not finite are null, bytes that are not UTF-8 become U+FFFD.
std::string StatusJson(const RunStatus& status);

}  // namespace taopd
