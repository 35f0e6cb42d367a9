#include "common/model/config/config_fields.h"

#include <limits>
#include <set>

namespace taopd {

using Json = nlohmann::ordered_json;

const Json* FindField(const Json& json, const char* key) {
  const auto it = json.find(key);
  return it == json.end() || it->is_null() ? nullptr : &*it;
}

absl::Status ReadInt(const Json& json, const char* key, int64_t min, int64_t max, int64_t* value) {
  const Json* found = FindField(json, key);
  if (found == nullptr) return absl::OkStatus();
  const bool whole = found->is_number_integer();
  if (!whole || (found->is_number_unsigned() &&
                 found->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})) {
    return InvalidArgument(key, " ", found->dump().substr(0, 80), " is not a whole number");
  }
  const int64_t number = found->get<int64_t>();
  if (number < min || number > max) {
    return InvalidArgument(key, " ", number, " is not between ", min, " and ", max);
  }
  *value = number;
  return absl::OkStatus();
}

absl::Status ReadReal(const Json& json, const char* key, double min, double max, double* value) {
  const Json* found = FindField(json, key);
  if (found == nullptr) return absl::OkStatus();
  const double number = found->is_number() ? found->get<double>() : std::nan("");
  if (!(number >= min && number <= max)) {
    return InvalidArgument(key, " ", found->dump().substr(0, 80), " is not a number between ", min,
                           " and ", max);
  }
  *value = number;
  return absl::OkStatus();
}

absl::Status ReadBool(const Json& json, const char* key, bool* value) {
  const Json* found = FindField(json, key);
  if (found == nullptr) return absl::OkStatus();
  if (!found->is_boolean()) {
    return InvalidArgument(key, " ", found->dump().substr(0, 80), " is neither true nor false");
  }
  *value = found->get<bool>();
  return absl::OkStatus();
}

absl::Status ReadString(const Json& json, const char* key, std::string* value) {
  const Json* found = FindField(json, key);
  if (found == nullptr) return absl::OkStatus();
  if (!found->is_string()) {
    return InvalidArgument(key, " ", found->dump().substr(0, 80), " is not a string");
  }
  *value = found->get<std::string>();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> ReadTokenIds(const Json& json, const char* key) {
  std::vector<int32_t> ids;
  const Json* found = FindField(json, key);
  if (found == nullptr) return ids;
  const Json list = found->is_array() ? *found : Json::array({*found});
  std::set<int64_t> seen;
  for (const Json& item : list) {
    const Json wrapped = {{key, item}};
    int64_t id = -1;
    TAOPD_RETURN_IF_ERROR(ReadInt(wrapped, key, -1, std::numeric_limits<int32_t>::max(), &id));
    if (id >= 0 && seen.insert(id).second) ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

absl::Status ReadTokenId(const Json& json, const char* key, std::optional<int32_t>* id) {
  TAOPD_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ReadTokenIds(json, key));
  if (ids.size() > 1)
    return InvalidArgument(key, " holds ", ids.size(), " ids; at most 1 is allowed");
  if (!ids.empty()) *id = ids[0];
  return absl::OkStatus();
}

}  // namespace taopd
