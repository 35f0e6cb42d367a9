#include "trainer/run/effective_config.h"

#include <iostream>

namespace taopd {

std::string ChangedSettings(const SettingTable& settings, const SettingTable& defaults) {
  std::string lines;
  for (size_t i = 0; i < settings.settings().size(); ++i) {
    const Setting& setting = settings.settings()[i];
    const std::string value = SettingText(setting.value);
    if (value == SettingText(defaults.settings()[i].value)) continue;
    lines += Concat(setting.path, "=", value, "\n");
  }
  return lines;
}

void PrintChangedSettings(const SettingTable& settings, const SettingTable& defaults,
                          const std::string& run_dir) {
  std::cout << "# settings that differ from their defaults; the run keeps all in " << run_dir
            << "/config.yaml\n"
            << ChangedSettings(settings, defaults) << std::flush;
}

}  // namespace taopd
