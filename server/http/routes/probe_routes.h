// GET /health, /health_generate (SGLang's), GET and POST /ping, GET /ready and GET /metrics.
#pragma once

#include "server/http/route.h"
#include "server/metrics/server_metrics.h"
#include "server/serving/serving_state.h"

namespace taopd {

// Both must outlive the routes.
Routes ProbeRoutes(ServingState* state, ServerMetrics* metrics);

}  // namespace taopd
