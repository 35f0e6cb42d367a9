// POST /v1/completions: parse, run on the engine, answer. Blocks its thread until the engine is
// done.
#pragma once

#include <functional>
#include <string>
#include <variant>

#include "server/http/completion_request.h"
#include "server/http/http_error.h"
#include "server/serving/serving_state.h"

namespace taopd {

// `request_id_header` (X-Request-Id) replaces the body's request_id when it is not empty.
// `client_gone` is asked a few times a second; once true, the work is cancelled. `hold_memory`
// receives the memory that the answer was granted, to be kept until it is sent.
std::variant<std::string, HttpError> RunCompletion(
    const std::string& body, const std::string& request_id_header, ServingState& state,
    const std::function<bool()>& client_gone,
    const std::function<void(ByteBudget::Reservation)>& hold_memory);

}  // namespace taopd
