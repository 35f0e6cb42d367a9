// Fuzz entry: a configuration of `taopd-trainer train`. What reads is written and read back to the
// same, whatever its checks say.
#include "common/base/check.h"
#include "common/config/yaml.h"
#include "trainer/config/train_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  taopd::TrainConfig config;
  const taopd::SettingTable table = taopd::DescribeSettings(config);
  const absl::Status read = taopd::ReadYamlSettings(text, "fuzz", table);
  if (!read.ok()) {
    TAOPD_CHECK(!read.message().empty());
    return 0;
  }
  const absl::Status checked = taopd::CheckSettings(table);
  TAOPD_CHECK(checked.ok() || !checked.message().empty());
  const std::string written = taopd::WriteYamlSettings(table);
  taopd::TrainConfig again;
  const taopd::SettingTable again_table = taopd::DescribeSettings(again);
  const absl::Status read_again = taopd::ReadYamlSettings(written, "written", again_table);
  TAOPD_CHECK(read_again.ok());
  TAOPD_CHECK(taopd::WriteYamlSettings(again_table) == written);
  return 0;
}
