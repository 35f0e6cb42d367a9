#include "server/options/flags.h"

#include <CLI/CLI.hpp>

#include <algorithm>

#include "common/base/check.h"

namespace taopd {

void AddSettingFlags(const SettingTable& table, CLI::App* app) {
  for (const Setting& setting : table.settings()) {
    std::string name = setting.path;
    std::replace(name.begin(), name.end(), '_', '-');
    std::replace(name.begin(), name.end(), '.', '-');
    std::visit(
        [&](auto* pointer) {
          if constexpr (std::is_same_v<decltype(pointer), SectionList*>) {
            TAOPD_CHECK(pointer == nullptr);  // a list of sections has no flag
          } else if constexpr (std::is_same_v<decltype(pointer), EnumSetting*>) {
            TAOPD_CHECK(pointer == nullptr);  // the teacher has no setting of words
          } else if constexpr (std::is_same_v<decltype(pointer), std::optional<int64_t>*> ||
                               std::is_same_v<decltype(pointer), std::optional<double>*>) {
            TAOPD_CHECK(pointer == nullptr);  // neither has a number that may be auto
          } else if constexpr (std::is_same_v<decltype(pointer), bool*>) {
            app->add_flag("--" + name + ",!--no-" + name, *pointer, setting.help);
          } else {
            app->add_option("--" + name, *pointer, setting.help)->capture_default_str();
          }
        },
        setting.value);
  }
}

}  // namespace taopd
