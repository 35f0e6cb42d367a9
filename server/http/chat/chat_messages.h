// The messages of a chat request in the form that chat templates expect.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "server/http/http_error.h"

namespace taopd {

// Checks the messages and changes them as vLLM does:
// - the content becomes a text, the parts of a list joined by line feeds; or, if `as_parts`, a list
//   of
//   parts {"type":"text","text":..}, for templates that loop over it;
// - the arguments of tool calls, which are JSON texts, become values;
// - "reasoning" and "reasoning_content" are the same.
// Returns a 400 that names the message otherwise.
absl::Status NormalizeMessages(bool as_parts, nlohmann::ordered_json* messages);

// The text of a message's content after NormalizeMessages.
std::string ContentText(const nlohmann::ordered_json& message);

}  // namespace taopd
