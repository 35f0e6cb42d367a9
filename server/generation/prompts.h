// Truncates the prompts of a request and fits them into the model's context. Errors are
// INVALID_ARGUMENT, in vLLM's words.
#pragma once

#include <string>

#include "server/generation/generation_request.h"
#include "server/serving/serving_state.h"

namespace taopd {

// Adds a prompt, truncated as the request asks. Call it when max_tokens is known: with
// truncate_prompt_tokens = -1, the prompt leaves room for them.
absl::Status AddPrompt(GenerationPrompt prompt, const EngineLimits& limits,
                       GenerationRequest* request);
// Adds a text as a prompt. Error messages call it `field`.
absl::Status AddPromptText(const std::string& text, bool add_special_tokens, const char* field,
                           const ServedModel& model, GenerationRequest* request);

// Cuts the number of new tokens of each prompt to what the context leaves. If `echo_only`,
// max_tokens 0 asks for one token that is not reported.
absl::Status FitPrompts(const EngineLimits& limits, bool echo_only, GenerationRequest* request);

}  // namespace taopd
