// Makes repetitive inputs for parsers, and damaged ones from given examples, the same on every run,
// with changes that a fuzzer would try. The default tests run each parser's fuzz entry
// (LLVMFuzzerTestOneInput) on them. With clang, the same entry is also a libFuzzer program
// (tests/fuzz/run).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/random.h"

// Feeds one input to the parser under test. Must return 0 and neither crash nor hang.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace taopd::testing {

inline std::string Repeated(const std::string& part, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += part;
  return text;
}

// Returns one of the examples with one to four changes, each of which is one of these:
//   a byte is set
//   bytes are removed or doubled
//   the end is cut off
//   a number or a piece of structure is inserted or replaces bytes
//   the rest is replaced by the tail of another example
inline std::string Mutate(const std::vector<std::string>& examples,
                          const std::vector<std::string>& dictionary, RandomStream* random) {
  static const std::vector<std::string> kJsonPieces = {"-1",
                                                       "0",
                                                       "18446744073709551616",
                                                       "9223372036854775807",
                                                       "1e309",
                                                       "null",
                                                       "[[[[",
                                                       "{\"a\":",
                                                       "\"\\ud800\"",
                                                       "\xff\xfe",
                                                       "\"",
                                                       ",",
                                                       "}",
                                                       "]",
                                                       "true",
                                                       "4294967295",
                                                       "0.5",
                                                       "[]",
                                                       "{}"};
  const std::vector<std::string>& pieces = dictionary.empty() ? kJsonPieces : dictionary;
  std::string text = examples[random->NextBelow(examples.size())];
  const uint64_t num_changes = 1 + random->NextBelow(4);
  for (uint64_t change = 0; change < num_changes; ++change) {
    const size_t at = random->NextBelow(text.size() + 1);
    const size_t length = std::min<size_t>(random->NextBelow(24), text.size() - at);
    switch (random->NextBelow(7)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(random->NextBelow(256));
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(at, length));
        break;
      case 3:
        text.resize(at);
        break;
      case 4:
        text.insert(at, pieces[random->NextBelow(pieces.size())]);
        break;
      case 5:
        text.replace(at, length, pieces[random->NextBelow(pieces.size())]);
        break;
      default: {
        const std::string& other = examples[random->NextBelow(examples.size())];
        text = text.substr(0, at) + other.substr(std::min(at, other.size()));
      }
    }
  }
  return text;
}

// Runs the entry on the examples and on num_inputs damaged ones. `dictionary` holds pieces of the
// format to insert; if it is empty, pieces of JSON are used.
inline void RunMutations(const std::vector<std::string>& examples,
                         const std::vector<std::string>& dictionary, int num_inputs,
                         uint64_t seed) {
  RandomStream random(seed);
  const auto run = [](const std::string& text) {
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  };
  for (const std::string& example : examples) run(example);
  for (int i = 0; i < num_inputs; ++i) run(Mutate(examples, dictionary, &random));
}

}  // namespace taopd::testing
