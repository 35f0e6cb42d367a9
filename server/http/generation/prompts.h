// Prompts of a request: reading, truncating and fitting them into the model's context.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "server/http/generation/generation_request.h"
#include "server/http/http_error.h"
#include "server/http/json_fields.h"
#include "server/serving/serving_state.h"

namespace taopd {

// truncate_prompt_tokens and truncation_side. Call it before prompts are added.
std::optional<HttpError> ReadTruncation(JsonFields& fields, GenerationRequest* request);

// Adds a prompt of token ids, truncated as the request asks. `field` names it in messages.
std::optional<HttpError> AddPromptIds(const nlohmann::json& ids, const char* field,
                                      const ServedModel& model, GenerationRequest* request);
// Adds a prompt that is a text.
std::optional<HttpError> AddPromptText(const std::string& text, bool add_special_tokens,
                                       const char* field, const ServedModel& model,
                                       GenerationRequest* request);

// Checks what can only be checked when all prompts are known, and cuts what each prompt may
// generate to what the context leaves. If `echo_only`, max_tokens 0 asks for one token that is not
// reported.
std::optional<HttpError> FinishPrompts(const ServedModel& model, bool echo_only,
                                       GenerationRequest* request);

}  // namespace taopd
