#include "common/text/bpe/pre_tokenizer.h"
#include "tests/support/status_matchers.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace taopd::testing {
namespace {

std::vector<std::string> Split(SplitPattern pattern, std::string_view text) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    const size_t size = FirstPieceBytes(pattern, text);
    pieces.emplace_back(text.substr(0, size));
    if (size == 0) break;
    text.remove_prefix(size);
  }
  return pieces;
}

// The expected pieces come from HF tokenizers 0.23.3, pre_tokenizers.Split with the patterns of the
// files.
TEST(PreTokenizer, Qwen2) {
  auto split = [](std::string_view text) { return Split(SplitPattern::kQwen2, text); };
  EXPECT_THAT(split("Hello, world's 1234"),
              ElementsAre("Hello", ",", " world", "'s", " ", "1", "2", "3", "4"));
  EXPECT_THAT(split("a  b"), ElementsAre("a", " ", " b"));
  EXPECT_THAT(split("a   \n\n  b  "), ElementsAre("a", "   \n\n", " ", " b", "  "));
  EXPECT_THAT(split("x'LLy 'Re\u017F'\u017F"),
              ElementsAre("x", "'LL", "y", " '", "Re\u017F", "'\u017F"));
  EXPECT_THAT(split("\tab\n(c!?\r\n\nd"), ElementsAre("\tab", "\n", "(c", "!?\r\n\n", "d"));
  EXPECT_THAT(split(" !a"), ElementsAre(" !", "a"));
  EXPECT_THAT(split("\u3000\u65E5\u0301"), ElementsAre("\u3000\u65E5", "\u0301"));
  EXPECT_THAT(split("'"), ElementsAre("'"));
  EXPECT_THAT(split("'l"), ElementsAre("'l"));
}

TEST(PreTokenizer, Llama3GroupsDigitsByThree) {
  EXPECT_THAT(Split(SplitPattern::kLlama3, "1234567 \u00BD89"),
              ElementsAre("123", "456", "7", " ", "\u00BD89"));
}

TEST(PreTokenizer, Gpt2) {
  auto split = [](std::string_view text) { return Split(SplitPattern::kGpt2, text); };
  EXPECT_THAT(split("Hello, world's 1234"), ElementsAre("Hello", ",", " world", "'s", " 1234"));
  EXPECT_THAT(split("I'LL we'll"), ElementsAre("I", "'", "LL", " we", "'ll"));
  EXPECT_THAT(split("a \n\n b\t c "), ElementsAre("a", " \n\n", " b", "\t", " c", " "));
  EXPECT_THAT(split("\tab"), ElementsAre("\t", "ab"));
  EXPECT_THAT(split("!?\n"), ElementsAre("!?", "\n"));
}

TEST(PreTokenizer, KnowsPatternsByTheirTextOnly) {
  const std::string gpt2 =
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  EXPECT_EQ(SplitPatternFromRegex(gpt2), SplitPattern::kGpt2);
  EXPECT_EQ(SplitPatternFromRegex(gpt2 + "|x"), std::nullopt);
  EXPECT_EQ(SplitPatternFromRegex(gpt2.substr(1)), std::nullopt);
  EXPECT_EQ(SplitPatternFromRegex(""), std::nullopt);
}

}  // namespace
}  // namespace taopd::testing
