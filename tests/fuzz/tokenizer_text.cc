// Fuzz entry: text for a tokenizer. It decodes to the same text, repaired and composed where the
// tokenizer's normalizer composes, and piece by piece to the same as in one call.
#include "common/base/check.h"
#include "common/text/tokenizer/incremental_decoder.h"
#include "common/text/tokenizer/tokenizer.h"
#include "common/text/unicode/unicode.h"
#include "tests/support/files.h"

namespace taopd {
namespace {

std::unique_ptr<Tokenizer> LoadToy() {
  auto tokenizer = Tokenizer::Parse(
      testing::ReadFile(testing::SourcePath("tests/common/text/data/qwen2_toy/tokenizer.json")));
  TAOPD_CHECK(tokenizer.ok());
  return *std::move(tokenizer);
}

}  // namespace
}  // namespace taopd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const taopd::Tokenizer* const tokenizer = taopd::LoadToy().release();
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::vector<int32_t> ids = tokenizer->Encode(text);
  const std::string decoded = tokenizer->Decode(ids, false);
  // Text next to an added token is composed by itself.
  if (text.find("<|") == std::string::npos) {
    TAOPD_CHECK(decoded == taopd::NormalizeNfc(taopd::RepairUtf8(text)));
  }
  taopd::IncrementalDecoder decoder(tokenizer, false);
  std::string joined;
  for (const int32_t id : ids) joined += decoder.Push(id);
  joined += decoder.Finish();
  TAOPD_CHECK(joined == decoded);
  return 0;
}
