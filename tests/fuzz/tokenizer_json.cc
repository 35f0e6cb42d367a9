// Fuzz entry: a tokenizer.json. One that loads encodes to ids of its vocabulary, and decodes to
// text.
#include "common/base/check.h"
#include "common/text/tokenizer/tokenizer.h"
#include "common/text/unicode/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tokenizer =
      taopd::Tokenizer::Parse(std::string(reinterpret_cast<const char*>(data), size));
  if (!tokenizer.ok()) return 0;
  const auto ids = (*tokenizer)->Encode("Hello  w\u00f6rld's <|endoftext|>\n123 low lower", true);
  for (const int32_t id : ids) {
    TAOPD_CHECK_GE(id, 0);
    TAOPD_CHECK_LT(id, (*tokenizer)->vocab_size());
  }
  TAOPD_CHECK(taopd::IsValidUtf8((*tokenizer)->Decode(ids, false)));
  return 0;
}
