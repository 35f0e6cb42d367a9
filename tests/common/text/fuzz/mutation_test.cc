// Seeded mutations of real inputs, in the place of a fuzzer: bytes and pieces changed, cut out,
// doubled, and swapped between inputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "common/base/random.h"
#include "tests/common/text/fuzz/text_fuzz.h"
#include "tests/support/files.h"

namespace taopd {
namespace {

// Pieces that mean something to one of the parsers.
constexpr const char* kPieces[] = {"{%",
                                   "%}",
                                   "{{",
                                   "}}",
                                   "{#",
                                   "-",
                                   "(",
                                   ")",
                                   "[",
                                   "]",
                                   "|",
                                   "'",
                                   "\"",
                                   "\\",
                                   "\n",
                                   " if ",
                                   " else ",
                                   " in ",
                                   " not ",
                                   " is ",
                                   "|list",
                                   "|tojson",
                                   "range(9)",
                                   "loop",
                                   "ns.x",
                                   "{% for a in b %}",
                                   "{% endfor %}",
                                   "{% endif %}",
                                   "null",
                                   "-1",
                                   "1e999",
                                   "99999999",
                                   "\xC3",
                                   "\xF0\x9F\x98\x80",
                                   "\xED\xA0\x80",
                                   "~",
                                   "**",
                                   "//",
                                   ":",
                                   ","};

std::string Mutate(std::string text, const std::vector<std::string>& seeds, RandomStream* random) {
  const uint64_t num_changes = 1 + random->NextBelow(6);
  for (uint64_t i = 0; i < num_changes; ++i) {
    const size_t at = random->NextBelow(text.size() + 1);
    const size_t size = std::min<size_t>(random->NextBelow(40), text.size() - at);
    switch (random->NextBelow(6)) {
      case 0:
        text.erase(at, size);
        break;
      case 1:
        text.insert(at, text.substr(at, size));
        break;
      case 2:
        if (at < text.size()) text[at] = static_cast<char>(random->NextBelow(256));
        break;
      case 3: {
        const std::string& other = seeds[random->NextBelow(seeds.size())];
        const size_t from = random->NextBelow(other.size() + 1);
        text.replace(at, size, other.substr(from, random->NextBelow(60)));
        break;
      }
      default:
        text.replace(at, random->NextBelow(2) * size,
                     kPieces[random->NextBelow(std::size(kPieces))]);
    }
  }
  return text;
}

std::string ReadTest(const std::string& name) {
  return testing::ReadFile(testing::SourcePath("tests/common/text/" + name));
}

TEST(TextMutations, Templates) {
  std::vector<std::string> seeds;
  std::istringstream lines(ReadTest("jinja/golden/cases.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    seeds.push_back(nlohmann::json::parse(line)["template"].get<std::string>());
  }
  RandomStream random(41);
  for (int i = 0; i < 6000; ++i) {
    testing::FuzzTemplate(Mutate(seeds[random.NextBelow(seeds.size())], seeds, &random));
  }
}

TEST(TextMutations, TokenizerJson) {
  const std::vector<std::string> seeds = {ReadTest("data/qwen2_toy/tokenizer.json"),
                                          ReadTest("golden/llama3_style.tokenizer.json"),
                                          ReadTest("golden/gpt2_style.tokenizer.json")};
  RandomStream random(42);
  for (int i = 0; i < 1500; ++i) {
    testing::FuzzTokenizerJson(Mutate(seeds[random.NextBelow(seeds.size())], seeds, &random));
  }
}

}  // namespace
}  // namespace taopd
