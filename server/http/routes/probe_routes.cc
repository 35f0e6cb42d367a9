#include "server/http/routes/probe_routes.h"

#include "common/metrics/prometheus.h"

namespace taopd {
namespace {

HttpResponse OkOrError(const absl::Status& status) {
  return status.ok() ? HttpResponse() : ErrorResponse(FromStatus(status));
}

}  // namespace

Routes ProbeRoutes(ServingState* state, ServerMetrics* metrics) {
  const auto health = [state](const std::string&, const Caller&) {
    return OkOrError(state->Health());
  };
  const auto ready = [state](const std::string&, const Caller&) {
    return OkOrError(state->Ready());
  };
  const auto text = [state, metrics](const std::string&, const Caller&) {
    return TextResponse(kPrometheusContentType, metrics->Text(*state));
  };
  return {{"GET", "/health", RouteKind::kProbe, health},
          {"GET", "/ping", RouteKind::kProbe, health},
          {"POST", "/ping", RouteKind::kProbe, health},
          {"GET", "/health_generate", RouteKind::kProbe, health},
          {"GET", "/ready", RouteKind::kProbe, ready},
          {"GET", "/metrics", RouteKind::kProbe, text}};
}

}  // namespace taopd
