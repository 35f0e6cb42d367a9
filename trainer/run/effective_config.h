// How a run shows its configuration: in full in config.yaml, on the terminal what differs from the
// defaults.
#pragma once

#include <string>

#include "common/config/settings.h"

namespace taopd {

// One line "path=value" for each setting whose value is not that of `defaults`, in the form that
// --set takes. Both tables describe the same type of configuration.
std::string ChangedSettings(const SettingTable& settings, const SettingTable& defaults);

// Prints ChangedSettings under a line that names RUN_DIR/config.yaml.
void PrintChangedSettings(const SettingTable& settings, const SettingTable& defaults,
                          const std::string& run_dir);

}  // namespace taopd
