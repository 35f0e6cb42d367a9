#include "trainer/data/prompt_dataset.h"

#include <cctype>
#include <cmath>
#include <tuple>

#include "common/base/random.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/files.h"
#include "tests/support/mutation.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

class LoadPromptsTest : public ::testing::Test {
 protected:
  absl::StatusOr<PromptDataset> Load(const std::string& content) {
    WriteFile(dir_.File("data.jsonl"), content);
    return LoadPrompts({dir_.File("data.jsonl")}, tokenizer_, options_);
  }
  DatasetOptions options_ = {.vocab_size = 256};
  TempDir dir_;
  const ByteTokenizer byte_tokenizer_;
  const Tokenizer* tokenizer_ = &byte_tokenizer_;
};

TEST_F(LoadPromptsTest, TextAndIds) {
  ASSERT_OK_AND_ASSIGN(
      PromptDataset data,
      Load("{\"prompt\":\"ab\",\"answer\":\"7\"}\n\n{\"prompt_ids\":[5,6],\"answer\":0.00001}\n"));
  ASSERT_EQ(data.records.size(), 2u);
  EXPECT_EQ(data.records[0].prompt_ids, (std::vector<int32_t>{1, 'a', 'b'}));
  EXPECT_EQ(data.records[0].answer, "7");
  EXPECT_EQ(data.records[0].id, "data.jsonl:1");
  EXPECT_EQ(data.records[1].prompt_ids, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(data.records[1].answer, "0.00001");
  EXPECT_EQ(data.records[1].id, "data.jsonl:3");
}

TEST_F(LoadPromptsTest, ResponsesEndWithEosOnce) {
  options_.response_key = "response";
  options_.append_eos_id = 2;
  ASSERT_OK_AND_ASSIGN(
      PromptDataset data,
      Load("{\"prompt\":\"a\",\"response\":\"b\"}\n{\"prompt\":\"a\",\"response_ids\":[9,2]}\n"));
  EXPECT_EQ(data.records[0].response_ids, (std::vector<int32_t>{'b', 2}));
  EXPECT_EQ(data.records[1].response_ids, (std::vector<int32_t>{9, 2}));
}

TEST_F(LoadPromptsTest, OverlongPromptsAreRefusedOrCounted) {
  options_.max_prompt_length = 3;
  const std::string content = "{\"prompt\":\"ab\"}\n{\"prompt\":\"abc\"}\n";
  EXPECT_ERROR(Load(content), kInvalidArgument,
               "data.jsonl:2: the prompt has 4 tokens, more than max_prompt_length 3");
  options_.filter_overlong_prompts = true;
  ASSERT_OK_AND_ASSIGN(PromptDataset data, Load(content));
  EXPECT_EQ(data.records.size(), 1u);
  EXPECT_EQ(data.num_overlong(), 1);
  EXPECT_ERROR(Load("{\"prompt\":\"abcdef\"}\n"), kInvalidArgument, "1 over-long prompts dropped");
}

TEST_F(LoadPromptsTest, OverlongPromptsAreCutAsAsked) {
  options_.max_prompt_length = 4;
  options_.add_special_tokens = false;
  const std::string rows =
      "{\"prompt\":\"abcd\"}\n{\"prompt\":\"abcdefg\"}\n{\"prompt_ids\":[1,2,3,4,5,6]}\n";
  for (const auto& [truncation, text, ids] :
       std::vector<std::tuple<Truncation, std::string, std::vector<int32_t>>>{
           {Truncation::kLeft, "defg", {3, 4, 5, 6}},
           {Truncation::kRight, "abcd", {1, 2, 3, 4}},
           {Truncation::kMiddle, "abfg", {1, 2, 5, 6}}}) {
    options_.truncation = truncation;
    const std::string name = NameOf(truncation);
    ASSERT_OK_AND_ASSIGN(const PromptDataset data, Load(rows));
    ASSERT_EQ(data.records.size(), 3u) << name;
    EXPECT_EQ(data.records[0].prompt, "abcd");
    EXPECT_EQ(data.records[0].num_truncated_tokens, 0);
    EXPECT_EQ(data.records[1].prompt, text) << name;  // as the model sees it
    EXPECT_EQ(data.records[1].prompt_ids, std::vector<int32_t>(text.begin(), text.end())) << name;
    EXPECT_EQ(data.records[1].num_truncated_tokens, 3);
    EXPECT_EQ(data.records[2].prompt, "");
    EXPECT_EQ(data.records[2].prompt_ids, ids) << name;
    EXPECT_EQ(data.num_truncated(), 2);
    EXPECT_EQ(data.num_overlong(), 0);
  }
  EXPECT_EQ(TruncateIds({1, 2, 3, 4, 5, 6}, 3, Truncation::kMiddle),
            (std::vector<int32_t>{1, 5, 6}));  // as in verl
}

// Has tokens for lower-case letters only.
class LowerCaseTokenizer final : public ByteTokenizer {
 public:
  std::vector<int32_t> Encode(std::string_view text, bool) const override {
    std::vector<int32_t> ids;
    for (char c : text) {
      if (std::islower(c)) ids.push_back(c);
    }
    return ids;
  }
  int64_t CountUnknownBytes(std::string_view text) const override {
    return static_cast<int64_t>(text.size() - Encode(text, false).size());
  }
};

TEST_F(LoadPromptsTest, CharactersWithoutATokenAreCounted) {
  const LowerCaseTokenizer tokenizer;
  tokenizer_ = &tokenizer;
  ASSERT_OK_AND_ASSIGN(
      PromptDataset data,
      Load("{\"prompt\":\"A bee\"}\n{\"prompt\":\"bee\"}\n{\"prompt\":\"I see X\"}\n"));
  EXPECT_EQ(data.records[0].num_unknown_bytes, 2);
  EXPECT_EQ(data.records[1].num_unknown_bytes, 0);
  EXPECT_EQ(data.num_unknown_bytes(), 6);
  EXPECT_EQ(data.num_duplicates(), 0) << "the texts differ, although the tokenizer drops that";
  EXPECT_ERROR(
      Load("{\"prompt\":\"ABC\"}\n"), kInvalidArgument,
      "data.jsonl:1: the prompt is empty: the tokenizer has a token for none of its characters");
}

TEST_F(LoadPromptsTest, BadRowsNameFileLineAndKey) {
  struct Case {
    std::string row, message;
  };
  for (const Case& c : std::vector<Case>{
           {"{\"question\":\"a\"}", "neither \"prompt\" nor \"prompt_ids\""},
           {"[1]", "must be an object"},
           {"{\"prompt\":5}", "\"prompt\" is neither text nor a list of messages"},
           {"{\"prompt\":\"\"", "data.jsonl:1"},
           {"{\"prompt_ids\":[]}", "the prompt is empty"},
           {"{\"prompt_ids\":[256]}", "\"prompt_ids\"[0] = 256"},
           {"{\"prompt_ids\":[1,-1]}", "\"prompt_ids\"[1] = -1"},
           {"{\"prompt_ids\":[1.5]}", "= 1.5"},
           {"{\"prompt\":[{\"role\":\"user\"}]}", "\"prompt\"[0] has no content"},
           {"{\"prompt\":[{\"role\":\"user\",\"content\":\"a\"}]}", "no chat template"},
           {"{\"prompt\":[]}", "an empty list of messages"},
           {"{\"prompt\":[7]}", "\"prompt\"[0] is not a message"},
           {"{\"prompt\":[{\"role\":7,\"content\":\"a\"}]}", "\"prompt\"[0] has no role"},
           {"{\"prompt\":[{\"role\":\"user\",\"content\":null}]}", "is not text"},
           {"{\"prompt\":null}", "\"prompt\" is neither text"},
           {"{\"prompt\":\"a\",\"data_source\":3}", "\"data_source\" is not text"},
           {"{\"prompt\":\"a\",\"answer\":[1]}", "\"answer\" is neither"},
           {"{\"prompt\":\"a\",\"answer\":36893488147419103232}", "give it as text"}}) {
    const auto result = Load(c.row + "\n");
    ASSERT_FALSE(result.ok()) << c.row;
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(c.message)) << c.row;
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("data.jsonl:1")) << c.row;
  }
}

TEST_F(LoadPromptsTest, FilesAndATokenizerMustBeThere) {
  EXPECT_ERROR(Load("\n\n"), kInvalidArgument, "no rows in");
  EXPECT_FALSE(LoadPrompts({"/nowhere.jsonl"}, tokenizer_, options_).ok());
  EXPECT_ERROR(LoadPrompts({}, tokenizer_, options_), kInvalidArgument, "empty list of files");
  tokenizer_ = nullptr;
  EXPECT_ERROR(Load("{\"prompt\":\"a\"}\n"), kInvalidArgument, "no tokenizer.json");
}

TEST_F(LoadPromptsTest, LongPairsAreRefused) {
  options_.response_key = "response";
  options_.max_length = 4;
  EXPECT_ERROR(Load("{\"prompt\":\"ab\",\"response\":\"cd\"}\n"), kInvalidArgument,
               "prompt and response have 5 tokens, more than max_length 4");
  EXPECT_ERROR(Load("{\"prompt\":\"ab\"}\n"), kInvalidArgument, "response");
}

// Renders "<role>content" per message and a mark at the start of the response.
absl::StatusOr<std::string> RenderForTest(const nlohmann::ordered_json& messages) {
  std::string text;
  for (const auto& message : messages) {
    text += "<" + message["role"].get<std::string>() + ">" + message["content"].get<std::string>();
  }
  return text + "<go>";
}

TEST_F(LoadPromptsTest, MessagesAreRenderedWithoutSpecialTokens) {
  options_.render = RenderForTest;
  ASSERT_OK_AND_ASSIGN(
      PromptDataset data,
      Load(
          R"({"prompt":[{"content":"s","role":"system"},{"content":"q","role":"user"}],"answer":"1"})"
          "\n"));
  EXPECT_EQ(data.records[0].prompt, "<system>s<user>q<go>");
  EXPECT_EQ(data.records[0].prompt_ids.size(), data.records[0].prompt.size());  // no BOS
  EXPECT_EQ(data.records[0].messages.size(), 2u);
  // An error of the template names its row.
  options_.render = [](const nlohmann::ordered_json&) { return InvalidArgument("no tools"); };
  EXPECT_ERROR(Load(R"({"prompt":[{"content":"s","role":"user"}]})"), kInvalidArgument,
               "data.jsonl:1: no tools");
}

TEST_F(LoadPromptsTest, TemplatesAndSystemPrompts) {
  options_.render = RenderForTest;
  const std::string rows =
      "{\"prompt\":\"ab\"}\n{\"prompt\":[{\"role\":\"user\",\"content\":\"c\"}]}\n"
      "{\"prompt\":[{\"role\":\"system\",\"content\":\"own\"},{\"role\":\"user\",\"content\":\"d\"}"
      "]}\n";
  ASSERT_OK_AND_ASSIGN(options_.prompt_template, MakePromptTemplate("Q: {question}", ""));
  ASSERT_OK_AND_ASSIGN(PromptDataset data, Load(rows));
  EXPECT_EQ(data.records[0].prompt, "Q: ab");
  EXPECT_EQ(data.records[0].prompt_ids.size(), 6u);  // with BOS: text stays text
  EXPECT_EQ(data.records[1].prompt, "<user>Q: c<go>");
  EXPECT_EQ(data.files[0].num_own_system, 0);

  ASSERT_OK_AND_ASSIGN(options_.prompt_template, MakePromptTemplate("", "be brief"));
  ASSERT_OK_AND_ASSIGN(data, Load(rows));
  EXPECT_EQ(data.records[0].prompt, "<system>be brief<user>ab<go>");
  EXPECT_EQ(data.records[1].prompt, "<system>be brief<user>c<go>");
  EXPECT_EQ(data.records[2].prompt, "<system>own<user>d<go>");
  EXPECT_EQ(data.files[0].num_own_system, 1);

  options_.prompt_template = {};
  options_.text_as_chat = true;
  ASSERT_OK_AND_ASSIGN(data, Load(rows));
  EXPECT_EQ(data.records[0].prompt, "<user>ab<go>");

  options_.text_as_chat = false;
  options_.messages_as_text = true;
  options_.render = nullptr;
  ASSERT_OK_AND_ASSIGN(data, Load(rows));
  EXPECT_EQ(data.records[2].prompt, "own\n\nd");
  EXPECT_EQ(data.records[2].prompt_ids.size(), 7u);  // with BOS
  EXPECT_TRUE(data.records[2].messages.is_null());

  ASSERT_OK_AND_ASSIGN(options_.prompt_template, MakePromptTemplate("Q: {question}", ""));
  EXPECT_ERROR(Load(R"({"prompt":[{"role":"assistant","content":"a"}]})"), kInvalidArgument,
               "the last message is not a user's text, so the prompt template custom has no");
  EXPECT_ERROR(Load(R"({"prompt_ids":[1]})"), kInvalidArgument, "token ids");
}

TEST_F(LoadPromptsTest, VerlsSchemaAndDottedKeys) {
  options_.render = RenderForTest;
  options_.vocab_size = 1 << 20;
  const auto load = [this] {
    return LoadPrompts({SourcePath("tests/common/io/golden/verl.parquet")}, tokenizer_, options_);
  };
  ASSERT_OK_AND_ASSIGN(const PromptDataset data, load());
  ASSERT_EQ(data.records.size(), 7u);
  EXPECT_EQ(data.files[0].format, "parquet");
  EXPECT_EQ(data.records[1].id, "verl.parquet:2");
  EXPECT_EQ(data.records[1].source, "math");
  EXPECT_EQ(data.records[1].answer, "2");  // reward_model.ground_truth
  EXPECT_EQ(data.records[2].source, "aime");
  EXPECT_THAT(data.records[2].prompt, StartsWith("<system>System 2.<user>What is 2 + 2?"));
  // Any column can be named by its path.
  options_.answer_key = "extra_info.split";
  options_.source_key = "ability";
  ASSERT_OK_AND_ASSIGN(const PromptDataset other, load());
  EXPECT_EQ(other.records[0].answer, "test");
  EXPECT_EQ(other.records[0].source, "math");
  options_.prompt_key = "extra_info.index";
  EXPECT_ERROR(load(), kInvalidArgument,
               "verl.parquet: row 1: \"extra_info.index\" is neither text");
}

TEST_F(LoadPromptsTest, DuplicatesAreCounted) {
  const std::string rows =
      "{\"prompt\":\"ab\"}\n{\"prompt_ids\":[1,97,98]}\n{\"prompt\":\"ab\",\"answer\":\"x\"}\n{"
      "\"prompt\":\"b\"}\n";
  WriteFile(dir_.File("a.jsonl"), rows);
  WriteFile(dir_.File("b.jsonl"), rows);
  ASSERT_OK_AND_ASSIGN(PromptDataset data, LoadPrompts({dir_.File("a.jsonl"), dir_.File("b.jsonl")},
                                                       tokenizer_, options_));
  EXPECT_EQ(data.records.size(), 8u);
  EXPECT_EQ(data.files[0].num_duplicates,
            1);  // ids never duplicate a text, whatever its tokens are
  EXPECT_EQ(data.files[1].num_duplicates, 4);
  EXPECT_EQ(data.num_duplicates(), 5);
  // Another response is no duplicate.
  options_.response_key = "response";
  ASSERT_OK_AND_ASSIGN(
      data, Load("{\"prompt\":\"a\",\"response\":\"b\"}\n{\"prompt\":\"a\",\"response\":\"c\"}\n"
                 "{\"prompt\":\"a\",\"response\":\"b\"}\n"));
  EXPECT_EQ(data.num_duplicates(), 1);
}

TEST_F(LoadPromptsTest, WithoutTokenizing) {
  options_.tokenize = false;
  tokenizer_ = nullptr;
  ASSERT_OK_AND_ASSIGN(
      const PromptDataset data,
      Load("{\"prompt\":\"ab\"}\n{\"prompt\":[{\"role\":\"user\",\"content\":\"c\"}]}\n"
           "{\"prompt\":[{\"role\":\"user\",\"content\":\"d\"}]}\n"));
  EXPECT_EQ(data.records[0].prompt, "ab");
  EXPECT_TRUE(data.records[0].prompt_ids.empty());
  EXPECT_EQ(data.records[1].messages.dump(), R"([{"role":"user","content":"c"}])");
  EXPECT_EQ(data.num_duplicates(), 0);
}

TEST_F(LoadPromptsTest, WeightsNeedOneNumberAFile) {
  ASSERT_OK_AND_ASSIGN(const PromptDataset data, Load("{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n"));
  ASSERT_OK_AND_ASSIGN(const auto shares, WeighFiles(data, {1.5}));
  EXPECT_EQ(shares[0].num_records, 2);
  EXPECT_EQ(shares[0].weight, 1.5);
  EXPECT_EQ(WeighFiles(data, {})->at(0).weight, 1.0);
  EXPECT_ERROR(WeighFiles(data, {1, 2}), kInvalidArgument, "2 weights for 1 files");
  for (double weight : {0.0, -1.0, 1001.0, static_cast<double>(NAN)}) {
    EXPECT_ERROR(WeighFiles(data, {weight}), kInvalidArgument, "data.jsonl");
  }
  EXPECT_ERROR(WeighFiles(data, {0.1}), kInvalidArgument, "uses none of its 2 rows");
}

// Lines with damaged bytes give an error that names the file, or other rows, but never a crash.
TEST_F(LoadPromptsTest, SeededMutationsOfLines) {
  const std::string whole =
      R"({"prompt":[{"content":"s","role":"system"},{"content":"q\u00e9","role":"user"}],"reward_model":{"ground_truth":"1"}})"
      "\n"
      R"({"prompt":"text","answer":1.5,"data_source":"x"})"
      "\n"
      R"({"prompt_ids":[1,2,3],"answer":"7"})"
      "\n";
  options_.render = RenderForTest;
  ASSERT_OK(Load(whole));
  int64_t num_errors = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    RandomStream random(seed, "lines");
    const auto data = Load(Mutate({whole}, {}, &random));
    if (data.ok()) continue;
    ++num_errors;
    EXPECT_THAT(std::string(data.status().message()), HasSubstr("data.jsonl"));
  }
  EXPECT_GT(num_errors, 200);
}

}  // namespace
}  // namespace taopd::testing
