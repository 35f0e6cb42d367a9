// Shows the configuration of a run: config.yaml has all settings, and the terminal those that
// differ from the defaults.
#pragma once

#include <string>

#include "common/config/settings.h"

namespace taopd {

// Returns one line "path=value", in the form that --set takes, for each setting whose value differs
// from `defaults`. Both tables must describe the same type of configuration.
std::string ChangedSettings(const SettingTable& settings, const SettingTable& defaults);

// Prints ChangedSettings under a line that names RUN_DIR/config.yaml.
void PrintChangedSettings(const SettingTable& settings, const SettingTable& defaults,
                          const std::string& run_dir);

}  // namespace taopd
