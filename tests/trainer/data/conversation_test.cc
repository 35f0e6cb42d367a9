#include "trainer/data/conversation.h"

#include "tests/support/byte_tokenizer.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "trainer/data/prompt_reader.h"

namespace taopd::testing {
namespace {

using Json = nlohmann::ordered_json;

const ConversationKeys kKeys = {"messages", "prompt", "response"};

Json Message(const std::string& role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

TEST(Conversation, ATurnIsThePromptOfWhatFollowsIt) {
  const Json row = {{"messages",
                     {Message("system", "s"), Message("user", "a"), Message("assistant", "b"),
                      Message("user", "c"), Message("assistant", "d")}},
                    {"data_source", "mine"}};
  ASSERT_TRUE(IsConversation(row, kKeys));
  ASSERT_OK_AND_ASSIGN(const auto last, SplitConversation(row, kKeys, AssistantTurns::kLast));
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0]["prompt"], (Json{Message("system", "s"), Message("user", "a"),
                                     Message("assistant", "b"), Message("user", "c")}));
  EXPECT_EQ(last[0]["response"], Json::array({Message("assistant", "d")}));
  EXPECT_EQ(last[0]["data_source"], "mine");
  EXPECT_FALSE(IsConversation(last[0], kKeys));
  ASSERT_OK_AND_ASSIGN(const auto all, SplitConversation(row, kKeys, AssistantTurns::kAll));
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["prompt"], (Json{Message("system", "s"), Message("user", "a")}));
  EXPECT_EQ(all[0]["response"], Json::array({Message("assistant", "b")}));
  EXPECT_EQ(all[1]["prompt"], last[0]["prompt"]);
}

TEST(Conversation, AWeightOfZeroIsNotLearned) {
  Json first = Message("assistant", "b"), second = Message("assistant", "d");
  first["weight"] = 0;
  second["weight"] = 1;
  const Json row = {{"messages", {Message("user", "a"), first, Message("user", "c"), second}}};
  ASSERT_OK_AND_ASSIGN(const auto all, SplitConversation(row, kKeys, AssistantTurns::kAll));
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0]["prompt"],
            (Json{Message("user", "a"), Message("assistant", "b"), Message("user", "c")}));
  EXPECT_EQ(all[0]["response"], Json::array({Message("assistant", "d")}));
}

TEST(Conversation, RowsWithAResponseAreNone) {
  const Json messages = {Message("user", "a"), Message("assistant", "b")};
  EXPECT_TRUE(IsConversation({{"messages", messages}, {"response", nullptr}}, kKeys));
  EXPECT_FALSE(IsConversation({{"messages", messages}, {"response", "b"}}, kKeys));
  EXPECT_FALSE(IsConversation({{"messages", messages}, {"response_ids", {1}}}, kKeys));
  EXPECT_FALSE(IsConversation({{"messages", nullptr}}, kKeys));
  EXPECT_FALSE(IsConversation({{"messages", messages}}, {"", "prompt", "response"}));
  EXPECT_FALSE(IsConversation(7, kKeys));
}

TEST(Conversation, WhatCannotBeLearnedIsRefused) {
  Json silent = Message("assistant", "b"), heavy = Message("assistant", "b");
  silent["weight"] = 0;
  heavy["weight"] = 2;
  const Json good = {Message("user", "a"), Message("assistant", "b")};
  const std::pair<Json, const char*> cases[] = {
      {{{"messages", "a"}}, "is not a list"},
      {{{"messages", Json::array()}}, "does not end with a message of the assistant"},
      {{{"messages", {Message("user", "a")}}}, "does not end with a message of the assistant"},
      {{{"messages", {7}}}, "does not end with a message of the assistant"},
      {{{"messages", Json::array({Message("assistant", "b")})}}, "has no prompt"},
      {{{"messages", {Message("user", "a"), silent}}}, "the weight of every learned turn is 0"},
      {{{"messages", {Message("user", "a"), heavy}}}, "neither 0 nor 1"},
      {{{"messages", good}, {"tools", {{{"name", "f"}}}}}, "has \"tools\""},
  };
  for (const auto& [row, words] : cases) {
    EXPECT_ERROR(SplitConversation(row, kKeys, AssistantTurns::kLast), kInvalidArgument, words);
  }
  EXPECT_OK(SplitConversation({{"messages", good}, {"tools", Json::array()}}, kKeys,
                              AssistantTurns::kLast)
                .status());
}

class ConversationRowsTest : public ::testing::Test {
 protected:
  ConversationRowsTest() {
    options_.vocab_size = 256;
    options_.response_key = "response";
    options_.messages_key = "messages";
    options_.append_eos_id = 2;
    options_.render = [this](const Json& messages) { return Render(messages) + "A:"; };
    options_.render_finished = [this](const Json& messages) { return Render(messages); };
  }
  std::string Render(const Json& messages) const {
    std::string text;
    for (const Json& message : messages) {
      const std::string role = message["role"];
      text +=
          Concat(role == "assistant" ? header_ : "U:", message["content"].get<std::string>(), "|");
    }
    return text;
  }
  absl::StatusOr<PromptDataset> Load(const Json& row) {
    WriteFile(dir_.File("data.jsonl"), row.dump() + "\n");
    return LoadPrompts({dir_.File("data.jsonl")}, &tokenizer_, options_);
  }
  TempDir dir_;
  ByteTokenizer tokenizer_;
  DatasetOptions options_;
  std::string header_ = "A:";
};

// The template ends the response, so no token is appended.
TEST_F(ConversationRowsTest, TheResponseIsWhatTheTemplateAddsToThePrompt) {
  ASSERT_OK_AND_ASSIGN(const PromptDataset data,
                       Load({{"messages", {Message("user", "q"), Message("assistant", "r")}}}));
  ASSERT_EQ(data.records.size(), 1u);
  EXPECT_EQ(data.records[0].prompt, "U:q|A:");
  EXPECT_EQ(data.records[0].response_ids, (std::vector<int32_t>{'r', '|'}));
  EXPECT_EQ(data.files[0].num_rows, 1);
}

TEST_F(ConversationRowsTest, TheRowIsNamedInErrors) {
  EXPECT_ERROR(Load({{"messages", {Message("user", "q")}}}), kInvalidArgument, "data.jsonl:1");
  EXPECT_ERROR(Load({{"prompt", "q"}}), kInvalidArgument,
               "has neither \"response\" nor \"response_ids\" nor \"messages\"");
  EXPECT_ERROR(Load({{"prompt", "q"}, {"response", Json::array({Message("assistant", "r")})}}),
               kInvalidArgument, "is a list of messages, but \"prompt\" is not");
  const Json prompt = Json::array({Message("user", "q")});
  for (const int weight : {0, 2}) {
    Json answer = Message("assistant", "r");
    answer["weight"] = weight;
    EXPECT_ERROR(Load({{"prompt", prompt}, {"response", Json::array({answer})}}), kInvalidArgument,
                 Concat("the weight ", weight));
  }
  options_.response_key.clear();
  EXPECT_ERROR(Load({{"prompt", prompt}, {"tools", {{{"name", "f"}}}}}), kInvalidArgument,
               "has \"tools\", which are not passed to the chat template");
  EXPECT_THAT(PromptReader(&tokenizer_, options_).Columns(), ::testing::Contains("tools"));
  options_.response_key = "response";
  header_ = "B:";  // the answer's beginning differs from what the prompt promises
  EXPECT_ERROR(Load({{"messages", {Message("user", "q"), Message("assistant", "r")}}}),
               kInvalidArgument, "renders the prompt differently");
  options_.render_finished = nullptr;
  EXPECT_ERROR(Load({{"messages", {Message("user", "q"), Message("assistant", "r")}}}),
               kInvalidArgument, "the model has no chat template");
}

}  // namespace
}  // namespace taopd::testing
