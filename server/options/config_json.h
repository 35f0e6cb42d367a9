// Makes the JSON of the effective settings for GET /config.
#pragma once

#include <string>

#include "common/config/settings.h"

namespace taopd {

// Returns {"name": value, ...} in the order of the declarations. The value of a setting whose name
// marks it as a secret (a key, a password, a token) is "(redacted)" unless it is empty.
std::string ConfigJson(const SettingTable& settings);

}  // namespace taopd
