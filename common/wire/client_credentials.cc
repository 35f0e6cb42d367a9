#include "common/wire/client_credentials.h"

#include <cstdlib>

namespace taopd {

absl::StatusOr<std::string> ApiKeyFrom(const std::string& variable, const std::string& setting) {
  const char* const key = std::getenv(variable.c_str());
  if (key != nullptr && *key != '\0') return std::string(key);
  return InvalidArgument(setting, ": the environment variable ", variable, " is empty or not set");
}

}  // namespace taopd
