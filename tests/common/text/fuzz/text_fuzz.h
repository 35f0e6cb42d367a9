// What the fuzzers feed: any bytes must end with a value or a Status, within the limits. Each is a
// libFuzzer target where clang builds (fuzz_*.cc) and part of the mutation test everywhere.
#pragma once

#include <string>
#include <string_view>

namespace taopd::testing {

// A tokenizer.json; one that loads encodes and decodes some text.
void FuzzTokenizerJson(const std::string& bytes);
// A template, rendered with a small chat when it parses.
void FuzzTemplate(std::string_view bytes);

}  // namespace taopd::testing
