// POST /inference/v1/generate.
#pragma once

#include <string>

#include "server/generation/generation_request.h"
#include "server/http/answer.h"
#include "server/serving/serving_state.h"

namespace taopd {

// Blocks until the engine is done, or, if the request asks for a stream, has its first token. Any
// thread may call.
Answer RunTokenGeneration(const std::string& body, const Caller& caller, ServingState& state);

}  // namespace taopd
