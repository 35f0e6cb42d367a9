#include "trainer/data/prompt_dataset.h"

#include <algorithm>
#include <set>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd {
namespace {

using testing::TempDir;
using testing::WriteFile;

// One id a byte.
class ByteTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> Encode(std::string_view text, bool add_special_tokens) const override {
    std::vector<int32_t> ids;
    if (add_special_tokens) ids.push_back(1);
    for (unsigned char c : text) ids.push_back(c);
    return ids;
  }
  std::string Decode(const std::vector<int32_t>& ids, bool) const override { return {ids.begin(), ids.end()}; }
  std::string TokenBytes(int32_t id) const override { return std::string(1, static_cast<char>(id)); }
  std::string IdToToken(int32_t id) const override { return TokenBytes(id); }
  std::optional<int32_t> TokenToId(std::string_view token) const override { return token[0]; }
  int64_t vocab_size() const override { return 256; }
  const std::string& hash() const override { return hash_; }

 private:
  std::string hash_ = "bytes";
};

class LoadPromptsTest : public ::testing::Test {
 protected:
  absl::StatusOr<PromptDataset> Load(const std::string& content, const DatasetOptions& options) {
    WriteFile(dir_.File("data.jsonl"), content);
    return LoadPrompts({dir_.File("data.jsonl")}, &tokenizer_, options);
  }
  DatasetOptions Options() {
    DatasetOptions options;
    options.vocab_size = 256;
    return options;
  }
  TempDir dir_;
  ByteTokenizer tokenizer_;
};

TEST_F(LoadPromptsTest, TextAndIds) {
  ASSERT_OK_AND_ASSIGN(PromptDataset data, Load("{\"prompt\":\"ab\",\"answer\":\"7\"}\n\n{\"prompt_ids\":[5,6],\"answer\":12}\n", Options()));
  ASSERT_EQ(data.records.size(), 2u);
  EXPECT_EQ(data.records[0].prompt_ids, (std::vector<int32_t>{1, 'a', 'b'}));
  EXPECT_EQ(data.records[0].answer, "7");
  EXPECT_EQ(data.records[0].id, "data.jsonl:1");
  EXPECT_EQ(data.records[1].prompt_ids, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(data.records[1].answer, "12");
  EXPECT_EQ(data.records[1].id, "data.jsonl:3");
}

TEST_F(LoadPromptsTest, ResponsesEndWithEosOnce) {
  DatasetOptions options = Options();
  options.response_key = "response";
  options.append_eos_id = 2;
  ASSERT_OK_AND_ASSIGN(PromptDataset data,
                       Load("{\"prompt\":\"a\",\"response\":\"b\"}\n{\"prompt\":\"a\",\"response_ids\":[9,2]}\n", options));
  EXPECT_EQ(data.records[0].response_ids, (std::vector<int32_t>{'b', 2}));
  EXPECT_EQ(data.records[1].response_ids, (std::vector<int32_t>{9, 2}));
}

TEST_F(LoadPromptsTest, OverlongPromptsAreRefusedOrCounted) {
  DatasetOptions options = Options();
  options.max_prompt_length = 3;
  const std::string content = "{\"prompt\":\"ab\"}\n{\"prompt\":\"abc\"}\n";
  EXPECT_ERROR(Load(content, options), absl::StatusCode::kInvalidArgument,
               "data.jsonl:2: the prompt has 4 tokens, more than max_prompt_length 3");
  options.filter_overlong_prompts = true;
  ASSERT_OK_AND_ASSIGN(PromptDataset data, Load(content, options));
  EXPECT_EQ(data.records.size(), 1u);
  EXPECT_EQ(data.num_filtered, 1);
  EXPECT_ERROR(Load("{\"prompt\":\"abcdef\"}\n", options), absl::StatusCode::kInvalidArgument, "1 over-long prompts dropped");
}

TEST_F(LoadPromptsTest, BadRowsNameFileLineAndKey) {
  struct Case {
    std::string row, message;
  };
  for (const Case& c : std::vector<Case>{{"{\"question\":\"a\"}", "neither \"prompt\" nor \"prompt_ids\""},
                                         {"[1]", "must be an object"},
                                         {"{\"prompt\":5}", "\"prompt\" is not text"},
                                         {"{\"prompt\":\"\"", "data.jsonl:1"},
                                         {"{\"prompt_ids\":[]}", "the prompt is empty"},
                                         {"{\"prompt_ids\":[256]}", "\"prompt_ids\"[0] = 256"},
                                         {"{\"prompt_ids\":[1,-1]}", "\"prompt_ids\"[1] = -1"},
                                         {"{\"prompt_ids\":[1.5]}", "= 1.5"},
                                         {"{\"prompt\":[{\"role\":\"user\"}]}", "list of messages"},
                                         {"{\"prompt\":\"a\",\"answer\":[1]}", "\"answer\" is neither"}}) {
    const auto result = Load(c.row + "\n", Options());
    ASSERT_FALSE(result.ok()) << c.row;
    EXPECT_THAT(std::string(result.status().message()), ::testing::HasSubstr(c.message)) << c.row;
    EXPECT_THAT(std::string(result.status().message()), ::testing::HasSubstr("data.jsonl:1")) << c.row;
  }
}

TEST_F(LoadPromptsTest, EmptyFilesAndMissingFilesAreErrors) {
  EXPECT_ERROR(Load("\n\n", Options()), absl::StatusCode::kInvalidArgument, "no rows in");
  EXPECT_FALSE(LoadPrompts({"/nowhere.jsonl"}, &tokenizer_, Options()).ok());
  EXPECT_ERROR(LoadPrompts({}, &tokenizer_, Options()), absl::StatusCode::kInvalidArgument, "empty list of files");
}

TEST_F(LoadPromptsTest, TextNeedsATokenizer) {
  WriteFile(dir_.File("t.jsonl"), "{\"prompt\":\"a\"}\n");
  EXPECT_ERROR(LoadPrompts({dir_.File("t.jsonl")}, nullptr, Options()), absl::StatusCode::kInvalidArgument, "no tokenizer.json");
}

TEST_F(LoadPromptsTest, LongPairsAreRefused) {
  DatasetOptions options = Options();
  options.response_key = "response";
  options.max_length = 4;
  EXPECT_ERROR(Load("{\"prompt\":\"ab\",\"response\":\"cd\"}\n", options), absl::StatusCode::kInvalidArgument,
               "prompt and response have 5 tokens, more than max_length 4");
  EXPECT_ERROR(Load("{\"prompt\":\"ab\"}\n", options), absl::StatusCode::kInvalidArgument, "response");
}

TEST(EpochOrder, EachRecordOnceAnEpochInANewOrder) {
  EpochOrder order(10, 3, true);
  std::vector<int64_t> first = order.Next(10), second = order.Next(10);
  EXPECT_NE(first, second);
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 10u);
  EXPECT_EQ(std::set<int64_t>(second.begin(), second.end()).size(), 10u);
}

TEST(EpochOrder, BatchesSpanEpochsAndResumeAnywhere) {
  for (int64_t cut = 0; cut < 25; ++cut) {
    EpochOrder whole(7, 5, true);
    std::vector<int64_t> expected;
    for (int64_t id : whole.Next(40)) expected.push_back(id);
    EpochOrder before(7, 5, true);
    std::vector<int64_t> got = before.Next(cut);
    EpochOrder after(7, 5, true);
    ASSERT_OK(after.Restore(before.epoch(), before.index()));
    for (int64_t id : after.Next(40 - cut)) got.push_back(id);
    EXPECT_EQ(got, expected) << cut;
  }
}

TEST(EpochOrder, UnshuffledIsTheFilesOrderAndBadPositionsAreRefused) {
  EpochOrder order(3, 5, false);
  EXPECT_EQ(order.Next(5), (std::vector<int64_t>{0, 1, 2, 0, 1}));
  EXPECT_ERROR(order.Restore(0, 4), absl::StatusCode::kInvalidArgument, "index 4");
}

}  // namespace
}  // namespace taopd
