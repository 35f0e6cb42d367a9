// GET /version and GET /v1/models.
#pragma once

#include "server/http/route.h"
#include "server/serving/serving_state.h"

namespace taopd {

// `state` must outlive the routes.
Routes ModelRoutes(ServingState* state);

}  // namespace taopd
