#include "server/options/flags.h"

#include <CLI/CLI.hpp>

#include <algorithm>

#include "common/base/check.h"

namespace taopd {

std::string FlagName(std::string path) {
  std::replace(path.begin(), path.end(), '_', '-');
  std::replace(path.begin(), path.end(), '.', '-');
  return path;
}

void AddSettingFlags(const SettingTable& table, CLI::App* app) {
  for (const Setting& setting : table.settings()) {
    const std::string name = FlagName(setting.path);
    std::visit(
        [&](auto* pointer) {
          using Pointer = decltype(pointer);
          if constexpr (std::is_same_v<Pointer, SectionList*> ||
                        std::is_same_v<Pointer, std::optional<int64_t>*> ||
                        std::is_same_v<Pointer, std::optional<double>*>) {
            TAOPD_CHECK(pointer == nullptr);  // the teacher has no such settings
          } else if constexpr (std::is_same_v<Pointer, EnumSetting*>) {
            const auto set = [word = setting.word, path = setting.path](const std::string& value) {
              const absl::Status status = word->Set(value);
              if (!status.ok()) {
                throw CLI::ValidationError(path + " = " + value, std::string(status.message()));
              }
            };
            app->add_option_function<std::string>("--" + name, set, setting.help)
                ->default_str(pointer->word());
          } else if constexpr (std::is_same_v<Pointer, bool*>) {
            app->add_flag("--" + name + ",!--no-" + name, *pointer, setting.help);
          } else {
            app->add_option("--" + name, *pointer, setting.help)->capture_default_str();
          }
        },
        setting.pointer);
  }
}

}  // namespace taopd
