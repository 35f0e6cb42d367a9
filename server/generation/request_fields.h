// The limits and meanings of fields that all protocols for generation share, and errors about one
// field. Errors are INVALID_ARGUMENT unless another code is given. Pure functions.
#pragma once

#include <cstdint>
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

// `name` is the protocol's name of the field: "request_id" or "rid".
absl::Status CheckRequestId(std::string_view name, std::string_view id);
// As in vLLM, a temperature of 0 allows one choice per prompt only. taopd.v1, whose requests may
// repeat a greedy sequence, passes none.
absl::Status CheckNumChoices(int64_t n, std::optional<float> temperature = std::nullopt);
absl::Status CheckCacheSalt(std::string_view salt);

// Returns the seed of a signed field. As in vLLM, -1 means none; any other number is taken as an
// unsigned number of 64 bits.
std::optional<uint64_t> SignedSeed(std::optional<int64_t> seed);

}  // namespace taopd
