// Typed reading of the members of a config.json. A missing or null member leaves the value alone;
// INVALID_ARGUMENT names the member, its value and the limits.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

// nullptr where the member is missing or null.
const nlohmann::ordered_json* FindField(const nlohmann::ordered_json& json, const char* key);

absl::Status ReadInt(const nlohmann::ordered_json& json, const char* key, int64_t min, int64_t max,
                     int64_t* value);
absl::Status ReadReal(const nlohmann::ordered_json& json, const char* key, double min, double max,
                      double* value);
absl::Status ReadBool(const nlohmann::ordered_json& json, const char* key, bool* value);
absl::Status ReadString(const nlohmann::ordered_json& json, const char* key, std::string* value);

// One id or a list of ids without repetitions; -1 is how older files say "none".
absl::StatusOr<std::vector<int32_t>> ReadTokenIds(const nlohmann::ordered_json& json,
                                                  const char* key);
// At most one id.
absl::Status ReadTokenId(const nlohmann::ordered_json& json, const char* key,
                         std::optional<int32_t>* id);

}  // namespace taopd
