#include "common/wire/client_credentials.h"

#include <cstdlib>

#include "common/wire/bearer.h"

namespace taopd {

absl::Status CheckApiKey(const std::string& key) {
  if (key.empty() || IsBearerKey(key)) return absl::OkStatus();
  return InvalidArgument(
      "the API key has a space, a line break or another character that is not printable ASCII");
}

absl::StatusOr<std::string> ApiKeyFrom(const std::string& variable, const std::string& setting) {
  const char* const key = std::getenv(variable.c_str());
  const std::string where = Concat(setting, ": the environment variable ", variable);
  if (key == nullptr || *key == '\0') return InvalidArgument(where, " is empty or not set");
  TAOPD_RETURN_IF_ERROR(Annotate(CheckApiKey(key), where));
  return std::string(key);
}

}  // namespace taopd
