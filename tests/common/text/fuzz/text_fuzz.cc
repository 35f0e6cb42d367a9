#include "tests/common/text/fuzz/text_fuzz.h"

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "common/text/jinja/template.h"
#include "common/text/tokenizer.h"
#include "common/text/unicode.h"

namespace taopd::testing {

void FuzzTokenizerJson(const std::string& bytes) {
  const auto tokenizer = Tokenizer::Parse(bytes);
  if (!tokenizer.ok()) return;
  const auto ids = (*tokenizer)->Encode("Hello  w\u00f6rld's <|endoftext|>\n123 low lower", true);
  for (const int32_t id : ids) {
    TAOPD_CHECK_GE(id, 0);
    TAOPD_CHECK_LT(id, (*tokenizer)->vocab_size());
  }
  TAOPD_CHECK(IsValidUtf8((*tokenizer)->Decode(ids, false)));
}

void FuzzTemplate(std::string_view bytes) {
  const auto parsed = jinja::Template::Parse(bytes);
  if (!parsed.ok()) return;
  static const nlohmann::ordered_json context = nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": "be \u00e9"}, {"role": "user", "content": "hi <think>x</think> y"},
                 {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1.5}}}]}],
    "tools": [{"type": "function"}], "bos_token": "<s>", "add_generation_prompt": true, "n": 3, "x": null})");
  const auto rendering = parsed->Render(context);
  if (rendering.ok()) TAOPD_CHECK(IsValidUtf8(rendering->text));
}

}  // namespace taopd::testing
