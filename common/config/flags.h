// Command-line flags from a SettingTable: the setting "max_model_len" is the flag --max-model-len,
// with its help and default. For programs whose settings are flat (the teacher); the trainer reads
// YAML and --set (yaml.h).
#pragma once

#include "common/config/settings.h"

namespace CLI {
class App;
}

namespace taopd {

// Adds one flag a setting to `app`; a list of sections cannot be one.
//  Booleans become --name / --no-name. `table`'s struct receives the
// values when app parses. Checks are run by the caller (CheckSettings).
void AddSettingFlags(const SettingTable& table, CLI::App* app);

}  // namespace taopd
