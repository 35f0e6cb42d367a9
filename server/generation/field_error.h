// Errors about one field of a request. Any thread may call.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace taopd {

// An error about the field `name`, which the status carries for protocols that report it apart.
absl::Status FieldStatus(std::string_view name, const std::string& message,
                         absl::StatusCode code = absl::StatusCode::kInvalidArgument);

// INVALID_ARGUMENT with the parts of a message, which ends as vLLM's do: with "(parameter=NAME)".
template <typename... Parts>
absl::Status FieldError(std::string_view name, const Parts&... parts) {
  return FieldStatus(name, Concat(parts..., " (parameter=", name, ")"));
}
// The same with the end "(parameter=NAME, value=VALUE)".
template <typename Value, typename... Parts>
absl::Status FieldValueError(std::string_view name, const Value& value, const Parts&... parts) {
  return FieldStatus(name, Concat(parts..., " (parameter=", name, ", value=", value, ")"));
}

// The field that the error is about, if FieldStatus made it.
std::optional<std::string> FieldOf(const absl::Status& status);

}  // namespace taopd
