#include "server/options/config_json.h"

#include <nlohmann/json.hpp>
#include <type_traits>
#include <variant>

namespace taopd {
namespace {

using nlohmann::ordered_json;

bool IsSecret(const std::string& path) {
  for (const char* end : {"key", "keys", "secret", "password", "token"}) {
    if (path.ends_with(end)) return true;
  }
  return false;
}

ordered_json ValueOf(const Setting& setting) {
  return std::visit(
      [](const auto* value) -> ordered_json {
        if constexpr (std::is_same_v<decltype(value), const SectionList*>) {
          return nullptr;  // the teacher has no lists of sections
        } else if constexpr (std::is_same_v<decltype(value), const EnumSetting*>) {
          return value->word();
        } else if constexpr (std::is_same_v<decltype(value), const std::optional<int64_t>*> ||
                             std::is_same_v<decltype(value), const std::optional<double>*>) {
          return *value ? ordered_json(**value) : ordered_json("auto");
        } else {
          return *value;
        }
      },
      setting.value);
}

}  // namespace

std::string ConfigJson(const SettingTable& settings) {
  ordered_json json = ordered_json::object();
  for (const Setting& setting : settings.settings()) {
    const ordered_json value = ValueOf(setting);
    const bool is_empty = value.is_string() ? value.get_ref<const std::string&>().empty()
                                            : value.is_array() && value.empty();
    json[setting.path] = IsSecret(setting.path) && !is_empty ? "(redacted)" : value;
  }
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace taopd
