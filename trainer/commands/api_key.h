// API keys of servers, from where the configuration says that they are.
#pragma once

#include <string>

#include "common/base/status.h"

namespace taopd {

// Returns the value of the environment variable `env` or the first line of `file`, both settings of
// `section`. Returns an empty key if neither is given, and INVALID_ARGUMENT, naming the setting, if
// there is no key where it should be.
absl::StatusOr<std::string> ReadApiKey(const std::string& section, const std::string& env,
                                       const std::string& file);

}  // namespace taopd
