#include "server/http/routes/probe_routes.h"

#include "common/metrics/prometheus.h"
#include "server/http/http_error.h"

namespace taopd {

Routes ProbeRoutes(ServingState* state, ServerMetrics* metrics) {
  const auto health = [state](HttpCall& call) {
    if (const absl::Status status = state->Health(); !status.ok()) {
      SendError(FromStatus(status), call.response);
    }
  };
  const auto ready = [state](HttpCall& call) {
    if (const absl::Status status = state->Ready(); !status.ok()) {
      SendError(FromStatus(status), call.response);
    }
  };
  const auto text = [state, metrics](HttpCall& call) {
    call.response.set_content(metrics->Text(*state), kPrometheusContentType);
  };
  return {{"GET", "/health", RouteKind::kProbe, health},
          {"GET", "/ping", RouteKind::kProbe, health},
          {"POST", "/ping", RouteKind::kProbe, health},
          {"GET", "/health_generate", RouteKind::kProbe, health},
          {"GET", "/ready", RouteKind::kProbe, ready},
          {"GET", "/metrics", RouteKind::kProbe, text}};
}

}  // namespace taopd
