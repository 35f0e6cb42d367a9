// The published test vectors, for the tokenizers in the shared data.
#include <algorithm>

#include "common/io/jsonl.h"
#include "common/text/tokenizer/tokenizer.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

class TokenizerVectors : public ::testing::TestWithParam<std::string> {};

TEST_P(TokenizerVectors, AllRows) {
  const std::string vectors = SharedData("tokenizers/vectors.jsonl");
  const std::string dir = SharedData("tokenizers/" + GetParam());
  if (vectors.empty() || dir.empty()) GTEST_SKIP() << "shared data is absent";
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, Tokenizer::Load(dir));
  const std::string name = GetParam() == "deepseek-r1-distill-qwen" ? "ds" : GetParam();
  int num_rows = 0;
  ASSERT_OK(ReadJsonl(vectors, [&](const nlohmann::json& row, int64_t line) {
    const auto names = row["tokenizers"].get<std::vector<std::string>>();
    if (std::find(names.begin(), names.end(), name) == names.end()) return absl::OkStatus();
    ++num_rows;
    const auto text = row["text"].get<std::string>();
    const auto ids = row["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer->Encode(text, row["add_special_tokens"].get<bool>()), ids)
        << vectors << ":" << line;
    if (row.contains("decoded") && row["decoded"].is_string()) {
      EXPECT_EQ(tokenizer->Decode(ids, false), row["decoded"].get<std::string>()) << line;
    }
    if (row.contains("decoded_skip_special") && row["decoded_skip_special"].is_string()) {
      EXPECT_EQ(tokenizer->Decode(ids, true), row["decoded_skip_special"].get<std::string>())
          << line;
    }
    return absl::OkStatus();
  }));
  EXPECT_GT(num_rows, 0);
}

INSTANTIATE_TEST_SUITE_P(Shared, TokenizerVectors,
                         ::testing::Values("qwen3", "qwen2.5", "llama3.1", "gpt2",
                                           "deepseek-r1-distill-qwen"));

}  // namespace
}  // namespace taopd::testing
