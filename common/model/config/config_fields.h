// Typed access to the members of a config.json. The functions that write to `value` leave it
// unchanged if the member is missing or null. An INVALID_ARGUMENT names the member, its value and
// the limits.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

// The limit of every member that counts positions: contexts and windows.
inline constexpr int64_t kMaxPositions = 1 << 26;

// Returns nullptr if the member is missing or null.
const nlohmann::ordered_json* FindField(const nlohmann::ordered_json& json, const char* key);

// `min` and `max` are inclusive.
absl::Status ReadInt(const nlohmann::ordered_json& json, const char* key, int64_t min, int64_t max,
                     int64_t* value);
absl::Status ReadReal(const nlohmann::ordered_json& json, const char* key, double min, double max,
                      double* value);
absl::Status ReadBool(const nlohmann::ordered_json& json, const char* key, bool* value);
absl::Status ReadString(const nlohmann::ordered_json& json, const char* key, std::string* value);

// Reads one id or a list of ids, without repetitions. Older files write -1 for "none".
absl::StatusOr<std::vector<int32_t>> ReadTokenIds(const nlohmann::ordered_json& json,
                                                  const char* key);
// Reads a member that has at most one id; see ReadTokenIds.
absl::Status ReadTokenId(const nlohmann::ordered_json& json, const char* key,
                         std::optional<int32_t>* id);

}  // namespace taopd
