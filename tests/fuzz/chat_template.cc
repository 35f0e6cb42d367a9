// Fuzz entry: a chat template, rendered with a small chat and the values of the seeds
// (tests/common/text/jinja/golden) when it parses. The text is valid UTF-8.
#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "common/text/jinja/template.h"
#include "common/text/unicode/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parsed = taopd::jinja::Template::Parse({reinterpret_cast<const char*>(data), size});
  if (!parsed.ok()) return 0;
  static const nlohmann::ordered_json context = nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": "be \u00e9"},
                 {"role": "user", "content": "hi <think>x</think> y"},
                 {"role": "assistant", "content": "",
                  "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1.5}}}]}],
    "tools": [{"type": "function"}], "bos_token": "<s>", "add_generation_prompt": true, "n": 3,
    "x": null, "s": "Hello, World", "u": "na\u00efve \u4f60 \ud83d\ude00", "t": true, "f": 2.5, "neg": -3,
    "d": {"b": 1, "a": [1, {"x": null}], "C": "\u00e9"}, "sp": " \t\u00a0 pad \u2003\n", "none": null,
    "lines": "one\ntwo\r\n\nthree\u2028four", "nums": [3, 1, 2, 2], "words": ["banana", "Apple", "cherry"],
    "people": [{"name": "Ann", "age": 41, "tags": ["x", "y"], "active": true},
               {"name": "bob", "age": 7, "tags": [], "active": false}],
    "quote": "it's \"quoted\" \\ \u0007 \u200b", "empty": "", "html": "<b>&'\"</b>"})");
  const auto rendering = parsed->Render(context);
  if (rendering.ok()) TAOPD_CHECK(taopd::IsValidUtf8(rendering->text));
  return 0;
}
