// POST /v1/completions: parses the body, runs the prompts on the engine and makes the answer.
#pragma once

#include <functional>
#include <string>
#include <variant>

#include "server/http/completion_request.h"
#include "server/http/http_error.h"
#include "server/serving/serving_state.h"

namespace taopd {

// Returns the JSON text of the answer, or the error to send. Blocks until the engine is done; any
// thread may call.
//
// `request_id_header` (X-Request-Id) replaces the body's request_id unless it is empty.
// `client_gone` is asked several times a second; the work is cancelled once it is true.
// `hold_memory` receives the reservation of the answer's memory; hold it until the answer is sent.
std::variant<std::string, HttpError> RunCompletion(
    const std::string& body, const std::string& request_id_header, ServingState& state,
    const std::function<bool()>& client_gone,
    const std::function<void(ByteBudget::Reservation)>& hold_memory);

}  // namespace taopd
