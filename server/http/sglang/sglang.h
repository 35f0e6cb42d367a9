// SGLang's protocol: POST /generate, and what its clients ask about the server.
#pragma once

#include <string>

#include "server/generation/generation_request.h"
#include "server/http/answer.h"
#include "server/serving/serving_state.h"

namespace taopd {

// Blocks until the engine is done, or, if the request asks for a stream, has its first token. Any
// thread may call.
Answer RunSglang(const std::string& body, const Caller& caller, ServingState& state);

// GET /get_model_info and /model_info.
Answer SglangModelInfo(ServingState& state);
// GET /server_info and /get_server_info.
Answer SglangServerInfo(ServingState& state);

}  // namespace taopd
