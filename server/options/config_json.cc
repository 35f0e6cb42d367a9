#include "server/options/config_json.h"

#include <nlohmann/json.hpp>
#include <type_traits>
#include <variant>

namespace taopd {
namespace {

using nlohmann::ordered_json;

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
      setting.pointer);
}

}  // namespace

std::string ConfigJson(const SettingTable& settings) {
  ordered_json json = ordered_json::object();
  for (const Setting& setting : settings.settings()) {
    json[setting.path] = ValueOf(setting);
  }
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace taopd
