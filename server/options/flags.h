// Command-line flags from a SettingTable: the setting "max_model_len" becomes the flag
// --max-model-len, with the setting's help and default. The trainer reads YAML and --set instead
// (common/config/yaml.h).
#pragma once

#include <string>

#include "common/config/settings.h"

namespace CLI {
class App;
}

namespace taopd {

// Returns the name of a setting's flag, without the dashes in front.
std::string FlagName(std::string path);

// Adds one flag per setting to `app`. A boolean becomes the pair --name and --no-name. When `app`
// parses, it writes the values into the struct that `table` describes; the caller then runs the
// checks (CheckSettings). REQUIRES: no setting is a list of sections or a number that may be
// "auto".
void AddSettingFlags(const SettingTable& table, CLI::App* app);

}  // namespace taopd
