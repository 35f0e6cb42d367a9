#include "trainer/commands/api_key.h"

#include <cstdlib>

#include "common/io/file.h"

namespace taopd {

absl::StatusOr<std::string> ReadApiKey(const std::string& section, const std::string& env,
                                       const std::string& file) {
  if (!env.empty()) {
    const char* key = std::getenv(env.c_str());
    if (key != nullptr && *key != '\0') return std::string(key);
    return InvalidArgument(section, ".api_key_env: the environment variable ", env,
                           " is empty or not set");
  }
  if (file.empty()) return std::string();
  auto text = ReadFileToString(file, 1 << 16);
  if (!text.ok()) return Annotate(text.status(), section + ".api_key_file");
  std::string key = text->substr(0, text->find_first_of("\r\n"));
  if (key.empty())
    return InvalidArgument(section, ".api_key_file: the first line of ", file, " is empty");
  return key;
}

}  // namespace taopd
