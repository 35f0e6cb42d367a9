// The field tool_choice: whether the model may, must or shall not call one of the request's tools.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "server/http/chat/chat.h"
#include "server/http/http_error.h"
#include "server/http/request/json_fields.h"

namespace taopd {

// Checks tools and tool_choice, with vLLM's messages.
absl::Status ReadToolChoice(JsonFields& fields);

// Sets what the choice makes of the answer. If it forces a call, the text follows the schema that
// vLLM makes of the tools, in place of what the request says of its form. `tools` have their keys
// in the order of the request. Call it after ReadToolChoice has accepted the choice.
absl::Status ReadToolCalls(JsonFields& fields, const nlohmann::ordered_json& tools,
                           const ServedModel& model, ChatRequest* request);

}  // namespace taopd
