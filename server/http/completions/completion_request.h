// The body of POST /v1/completions, as vLLM defines it. Fields that nobody knows are logged and
// ignored. Fields that would change the answer and are not supported here are refused by name.
#pragma once

#include <string>
#include <variant>

#include "server/generation/generation_request.h"
#include "server/http/http_error.h"
#include "server/http/json_fields.h"
#include "server/serving/serving_state.h"

namespace taopd {

// max_tokens is 0 only with echo: the engine then generates one token, which is not reported (as
// vLLM does).
struct CompletionRequest : GenerationRequest {
  bool echo = false;
};

// Reads and checks a body. Any thread may call; calls beyond a few at once wait (ReadBody).
absl::StatusOr<CompletionRequest> ParseCompletionRequest(const std::string& body,
                                                         const ServedModel& model);

// Does the same for a body that is parsed already.
absl::Status ReadCompletionRequest(JsonFields& fields, const ServedModel& model,
                                   CompletionRequest* request);

}  // namespace taopd
