// The routes of the protocols that score and generate, and those that describe the server.
#pragma once

#include "server/http/route.h"
#include "server/serving/serving_state.h"

namespace taopd {

// `state` must outlive the routes.
Routes CompletionRoutes(ServingState* state);

}  // namespace taopd
