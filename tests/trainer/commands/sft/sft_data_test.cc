#include "trainer/commands/sft/sft_data.h"

#include <nlohmann/json.hpp>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "trainer/setup/prompts.h"

namespace taopd::testing {
namespace {

using Json = nlohmann::ordered_json;

// The ids are those of TRL's SFTTrainer for the same rows as prompt and completion
// (make_sft_rows.py).
TEST(SftData, ConversationsHaveTheTokensOfTrl) {
  if (SharedData("tokenizers").empty()) GTEST_SKIP() << "shared data is absent";
  const Json cases =
      Json::parse(ReadFile(SourcePath("tests/trainer/commands/sft/golden/sft_rows.json")));
  const TempDir dir;
  const ModelConfig model = {
      .vocab_size = 152000, .max_position_embeddings = 4096, .eos_token_ids = {151643}};
  for (const Json& golden : cases) {
    const std::string tokenizer_dir =
        SharedData("tokenizers/" + golden["tokenizer"].get<std::string>());
    ASSERT_OK_AND_ASSIGN(const auto tokenizer, Tokenizer::Load(tokenizer_dir));
    std::string conversations, pairs;
    for (const Json& row : golden["rows"]) {
      const Json& messages = row["messages"];
      conversations += Json{{"messages", messages}}.dump() + "\n";
      pairs += Json{{"prompt", Json(messages.begin(), messages.end() - 1)},
                    {"completion", Json::array({messages.back()})}}
                   .dump() +
               "\n";
    }
    WriteFile(dir.File("conversations.jsonl"), conversations);
    WriteFile(dir.File("pairs.jsonl"), pairs);
    for (const char* name : {"conversations", "pairs"}) {
      SftDataConfig config;
      config.train = {dir.File(Concat(name, ".jsonl"))};
      config.chat_template_kwargs = golden["chat_template_kwargs"].dump();
      if (std::string(name) == "pairs") config.response_key = "completion";
      ASSERT_OK_AND_ASSIGN(const SftData data,
                           LoadSftData(config, model, tokenizer_dir, tokenizer.get()));
      ASSERT_EQ(data.train.records.size(), golden["rows"].size());
      for (size_t i = 0; i < data.train.records.size(); ++i) {
        const PromptRecord& record = data.train.records[i];
        EXPECT_EQ(Json(record.prompt_ids), golden["rows"][i]["prompt_ids"]) << record.prompt;
        EXPECT_EQ(Json(record.response_ids), golden["rows"][i]["response_ids"]) << record.prompt;
      }
    }
    DataConfig given;  // train takes the same pairs as given responses
    given.train = {dir.File("pairs.jsonl")};
    given.chat_template_kwargs = golden["chat_template_kwargs"].dump();
    given.response_key = "completion";
    ASSERT_OK_AND_ASSIGN(const PromptModel prompt_model,
                         MakePromptModel(given, tokenizer_dir, tokenizer.get(), model));
    ASSERT_OK_AND_ASSIGN(const TrainingPrompts prompts, LoadTrainingPrompts(given, prompt_model));
    EXPECT_EQ(Json(prompts.dataset.records[0].response_ids), golden["rows"][0]["response_ids"]);
  }
}

// With all turns, the last one is still TRL's, and each earlier one is that of its own beginning.
TEST(SftData, EachTurnIsTheLastOneOfItsBeginning) {
  if (SharedData("tokenizers").empty()) GTEST_SKIP() << "shared data is absent";
  const std::string tokenizer_dir = SharedData("tokenizers/qwen3");
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, Tokenizer::Load(tokenizer_dir));
  const TempDir dir;
  const auto message = [](const char* role, const char* content) {
    return Json{{"role", role}, {"content", content}};
  };
  const Json whole = {message("user", "a"), message("assistant", "<think>\nx\n</think>\n\nb"),
                      message("user", "c"), message("assistant", "d")};
  const Json beginning(whole.begin(), whole.begin() + 2);
  WriteFile(dir.File("whole.jsonl"), Json{{"messages", whole}}.dump() + "\n");
  WriteFile(dir.File("both.jsonl"),
            Json{{"messages", beginning}}.dump() + "\n" + Json{{"messages", whole}}.dump() + "\n");
  const ModelConfig model = {.vocab_size = 152000, .max_position_embeddings = 4096};
  SftDataConfig config;
  config.train = {dir.File("whole.jsonl")};
  config.assistant_turns = AssistantTurns::kAll;
  ASSERT_OK_AND_ASSIGN(const SftData all,
                       LoadSftData(config, model, tokenizer_dir, tokenizer.get()));
  config.train = {dir.File("both.jsonl")};
  config.assistant_turns = AssistantTurns::kLast;
  ASSERT_OK_AND_ASSIGN(const SftData each,
                       LoadSftData(config, model, tokenizer_dir, tokenizer.get()));
  ASSERT_EQ(all.train.records.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(all.train.records[i].prompt_ids, each.train.records[i].prompt_ids);
    EXPECT_EQ(all.train.records[i].response_ids, each.train.records[i].response_ids);
  }
}

}  // namespace
}  // namespace taopd::testing
