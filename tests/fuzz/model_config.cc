// Fuzz entry: a config.json. What parses has bounded sizes, and writes and reads back to the same.
#include "common/model/config/model_config.h"
#include "common/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  auto config = taopd::ParseModelConfig(text);
  if (!config.ok()) {
    TAOPD_CHECK(!config.status().message().empty());
    return 0;
  }
  TAOPD_CHECK_GT(config->NumParameters(), 0);
  TAOPD_CHECK_GT(config->head_dim, 0);
  config->raw_json.clear();
  config->dtype = "float32";
  const std::string written = taopd::ModelConfigJson(*config);
  const auto read = taopd::ParseModelConfig(written);
  TAOPD_CHECK(read.ok());
  TAOPD_CHECK(taopd::ModelConfigJson(*read) == written);
  return 0;
}
