// A route of the HTTP server: a method, a path, and the function that answers. The functions of
// server/http/routes/ make the routes; everything that depends on the set of routes (404 or 405,
// the labels of the metrics) is read from them.
#pragma once

#include <absl/time/time.h>
#include <httplib.h>

#include <functional>
#include <string>
#include <vector>

#include "server/serving/byte_budget.h"

namespace taopd {

// One request while it is answered.
//
// `request` and `response` live until the answer has been sent. The functions may be copied into a
// content provider of the response; any thread may call them until the answer has been sent.
struct HttpCall {
  const httplib::Request& request;
  httplib::Response& response;
  // The client's name for the engine's turns and for shares (server/net/client_name.h).
  std::string client;
  // When the client stops waiting; absl::InfiniteFuture() if it has not said so.
  absl::Time deadline = absl::InfiniteFuture();
  // Whether the client has gone. Never waits. Ask it a few times a second while work is done, and
  // cancel the work once it is true.
  std::function<bool()> is_gone;
  // Keeps the reservation until the answer has been sent.
  std::function<void(ByteBudget::Reservation)> hold_memory;
};

enum class RouteKind {
  kProbe,  // for monitors; answers at once, on threads of its own, whatever the other routes do
  kWork,   // may wait for the engine
};

struct Route {
  std::string method;  // "GET", which also serves HEAD, or "POST"
  std::string path;    // compared as it is: "/v1/completions"
  RouteKind kind = RouteKind::kWork;
  // Sets status (200 if it does not), headers and body of the response. It may block, and it may
  // leave a chunked content provider that blocks: both run on one worker thread. What it throws is
  // logged and answered with 500.
  std::function<void(HttpCall& call)> handle;
};

using Routes = std::vector<Route>;

}  // namespace taopd
