// POST /v1/completions: parses the body, runs the prompts on the engine and makes the answer.
#pragma once

#include <absl/time/time.h>

#include <functional>
#include <string>
#include <variant>

#include "server/http/completion_request.h"
#include "server/http/http_error.h"
#include "server/serving/serving_state.h"

namespace taopd {

struct CompletionCaller {
  std::string request_id;  // X-Request-Id; replaces the body's request_id unless it is empty
  std::string address;     // without the port; the work of different addresses is done in turns
  absl::Time deadline = absl::InfiniteFuture();  // the work is given up then, with 504
  // Asked several times a second; the work is cancelled once it is true.
  std::function<bool()> is_gone;
  // Receives the reservation of the answer's memory; hold it until the answer is sent.
  std::function<void(ByteBudget::Reservation)> hold_memory;
};

// Returns the JSON text of the answer, or the error to send. Blocks until the engine is done; any
// thread may call.
std::variant<std::string, HttpError> RunCompletion(const std::string& body,
                                                   const CompletionCaller& caller,
                                                   ServingState& state);

}  // namespace taopd
