// Makes the JSON of the effective settings for GET /config. The caller leaves out the secrets
// (TeacherOptions::WithoutSecrets).
#pragma once

#include <string>

#include "common/config/settings.h"

namespace taopd {

// Returns {"name": value, ...} in the order of the declarations.
std::string ConfigJson(const SettingTable& settings);

}  // namespace taopd
