// The protocols of HTTP that generate: each parses the body of a request, runs its prompts on the
// engine and makes the answer.
#pragma once

#include <string>

#include "server/generation/generation_request.h"
#include "server/http/answer.h"
#include "server/serving/serving_state.h"

namespace taopd {

// These functions block until the engine is done, or, if the request asks for a stream, has its
// first token. Any thread may call.
// POST /v1/completions
absl::StatusOr<Answer> RunCompletion(const std::string& body, const Caller& caller,
                                     ServingState& state);
// POST /v1/chat/completions
absl::StatusOr<Answer> RunChat(const std::string& body, const Caller& caller, ServingState& state);
// POST /inference/v1/generate
absl::StatusOr<Answer> RunTokenGeneration(const std::string& body, const Caller& caller,
                                          ServingState& state);
// POST /generate, which is SGLang's
absl::StatusOr<Answer> RunSglang(const std::string& body, const Caller& caller,
                                 ServingState& state);

}  // namespace taopd
