// Fuzz entry: a tokenizer_config.json and the template that is in it.
#include "common/text/tokenizer/tokenizer_config.h"
#include "common/base/check.h"
#include "tests/fuzz/files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const taopd::testing::ScratchDir dir;
  dir.Write("tokenizer_config.json", {reinterpret_cast<const char*>(data), size});
  const auto config = taopd::ReadTokenizerConfig(dir.path());
  if (!config.ok()) {
    TAOPD_CHECK(!config.status().message().empty());
    return 0;
  }
  for (const auto& [name, text] : config->special_tokens) {
    TAOPD_CHECK(config->SpecialToken(name).has_value());
  }
  return 0;
}
