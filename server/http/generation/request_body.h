// The body of a request as a JSON object.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "server/http/http_error.h"

namespace taopd {

// Parses the body and calls `read` with it, whose error it returns; or returns the error of a body
// that is not a JSON object. Any thread may call; calls beyond a few at once wait, because a parsed
// body takes many times the memory of its text.
std::optional<HttpError> ReadBody(
    const std::string& body,
    const std::function<std::optional<HttpError>(const nlohmann::json&)>& read);

// Returns a random id of 32 hexadecimal digits, like vLLM's.
std::string RandomRequestId();

}  // namespace taopd
