// Errors about one field of a request. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace taopd {

// Returns an error about the field `name`. The status carries the name, for protocols that report
// it apart from the message.
absl::Status FieldStatus(std::string_view name, const std::string& message,
                         absl::StatusCode code = absl::StatusCode::kInvalidArgument);

// Returns INVALID_ARGUMENT with a message that ends with "(parameter=NAME)", as in vLLM.
template <typename... Parts>
absl::Status FieldError(std::string_view name, const Parts&... parts) {
  return FieldStatus(name, Concat(parts..., " (parameter=", name, ")"));
}
// Returns INVALID_ARGUMENT with a message that ends with "(parameter=NAME, value=VALUE)".
template <typename Value, typename... Parts>
absl::Status FieldValueError(std::string_view name, const Value& value, const Parts&... parts) {
  return FieldStatus(name, Concat(parts..., " (parameter=", name, ", value=", value, ")"));
}

// Returns the field that an error of FieldStatus is about; nullopt for other errors.
std::optional<std::string> FieldOf(const absl::Status& status);

}  // namespace taopd
