// Prompts of a JSON body: their ids, and the fields that say how they are truncated.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "server/generation/generation_request.h"
#include "server/http/http_error.h"
#include "server/http/request/json_fields.h"
#include "server/serving/serving_state.h"

namespace taopd {

// truncate_prompt_tokens and truncation_side. Call it before prompts are added.
absl::Status ReadTruncation(JsonFields& fields, GenerationRequest* request);

// Adds a prompt of token ids, truncated as the request asks. `field` names it in messages.
absl::Status AddPromptIds(const nlohmann::ordered_json& ids, const char* field,
                          const ServedModel& model, GenerationRequest* request);

// Checks what can only be checked when all prompts are known, fits the prompts (FitPrompts), and
// sets what is reported of generated tokens.
absl::Status FinishPrompts(const ServedModel& model, bool echo_only, GenerationRequest* request);

}  // namespace taopd
