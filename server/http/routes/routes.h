// A route of the HTTP server: a method, a path, and the function that answers. Everything that
// depends on the set of routes (404 or 405, the labels of the metrics) is read from MakeRoutes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "server/generation/generation_request.h"
#include "server/http/http_response.h"
#include "server/metrics/server_metrics.h"

namespace taopd {

enum class RouteKind {
  kProbe,  // for monitors; answers immediately, on threads of its own, whatever the other routes do
  kWork,   // may wait for the engine
};

struct Route {
  std::string method;  // "GET", which also serves HEAD, or "POST"
  std::string path;    // compared as it is: "/v1/completions"
  RouteKind kind = RouteKind::kWork;
  // Answers a request with this body. It may block, and so may the stream of the response: both run
  // on one worker thread. The body lives until the response has been sent, and so do the functions
  // of the caller, which any thread may call. An exception is logged and answered with 500.
  std::function<HttpResponse(const std::string& body, const Caller& caller)> handle;
};

using Routes = std::vector<Route>;

// Returns the probes, the protocols that generate and score, and the descriptions of the server and
// its model. Both arguments must outlive the routes.
Routes MakeRoutes(ServingState* state, ServerMetrics* metrics);

}  // namespace taopd
