// The chat template of a model directory, against the results of transformers for the same files.
#include "common/text/chat/chat_template.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "common/io/jsonl.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using nlohmann::ordered_json;
constexpr auto kInvalid = kInvalidArgument;

ordered_json UserSays(const std::string& text) {
  return ordered_json::array({{{"role", "user"}, {"content", text}}});
}

// Shows the variables that a template is given.
constexpr char kShowAll[] =
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
    "{% if tools %}T{{ tools|length }}{% endif %}{% if documents %}D{{ documents|length }}{% endif "
    "%}"
    "{% if tools is defined and tools is none %}N{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{{ x }}{{ eos_token }}";

class ChatTemplateTest : public ::testing::Test {
 protected:
  void WriteConfig(const ordered_json& config) {
    WriteFile(dir_.File("tokenizer_config.json"), config.dump());
  }
  absl::StatusOr<std::string> Render(const ordered_json& messages,
                                     const ChatOptions& options = {}) {
    TAOPD_ASSIGN_OR_RETURN(const ChatTemplate chat, ChatTemplate::Load(dir_.path()));
    TAOPD_ASSIGN_OR_RETURN(const auto rendering, chat.Render(messages, options));
    return rendering.text;
  }
  TempDir dir_;
};

TEST_F(ChatTemplateTest, VariablesOfTheTemplate) {
  WriteConfig({{"chat_template", kShowAll},
               {"bos_token", {{"__type", "AddedToken"}, {"content", "<s>"}}},
               {"eos_token", "</s>"},
               {"pad_token", nullptr}});
  EXPECT_EQ(*Render(UserSays("hi")), "<s>[user:hi]N</s>");
  ChatOptions options;
  options.add_generation_prompt = true;
  options.tools = ordered_json::array({{{"name", "f"}}});
  options.documents = ordered_json::array({{{"title", "t"}}, {{"title", "u"}}});
  options.kwargs["x"] = 5;
  options.kwargs["eos_token"] = "!";
  EXPECT_EQ(*Render(UserSays("hi"), options), "<s>[user:hi]T1D2<assistant>5!");
}

TEST_F(ChatTemplateTest, FilesInTransformersOrder) {
  EXPECT_EQ(Render(UserSays("hi")).status().code(), kNotFound);
  WriteFile(dir_.File("chat_template.json"), R"({"chat_template": "legacy"})");
  EXPECT_EQ(*Render(UserSays("hi")), "legacy");
  WriteConfig({{"chat_template",
                {{{"name", "default"}, {"template", "plain"}},
                 {{"name", "tool_use"}, {"template", "tools"}},
                 {{"name", "rag"}, {"template", "documents"}}}}});
  ChatOptions with_tools;
  with_tools.tools = ordered_json::array();
  EXPECT_EQ(*Render(UserSays("hi")), "plain");
  EXPECT_EQ(*Render(UserSays("hi"), with_tools), "tools");
  ChatOptions named;
  named.template_name = "rag";
  EXPECT_EQ(*Render(UserSays("hi"), named), "documents");
  named.template_name = "none such";
  EXPECT_ERROR(Render(UserSays("hi"), named), kInvalid, "there are: default, rag, tool_use");
  WriteFile(dir_.File("chat_template.jinja"), "file\n");
  EXPECT_EQ(*Render(UserSays("hi")), "file");
  EXPECT_EQ(*Render(UserSays("hi"), with_tools), "file");
  std::filesystem::create_directory(dir_.File("additional_chat_templates"));
  WriteFile(dir_.File("additional_chat_templates/tool_use.jinja"), "extra");
  EXPECT_EQ(*Render(UserSays("hi"), with_tools), "extra");
  std::filesystem::create_symlink("absent", dir_.File("additional_chat_templates/a.jinja"));
  EXPECT_ERROR(Render(UserSays("hi")), kDataLoss, "a.jinja");
}

TEST_F(ChatTemplateTest, ContinueFinalMessage) {
  ChatOptions options;
  options.continue_final_message = true;
  WriteConfig({{"chat_template", "{% for m in messages %}<{{ m.content }}>{% endfor %}"}});
  EXPECT_EQ(*Render(UserSays("go on "), options), "<go on ");
  WriteConfig({{"chat_template", "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}"}});
  EXPECT_EQ(*Render(UserSays("go on "), options), "<go on");
  WriteConfig({{"chat_template", "{{ messages[0].content[0].text }}|"}});
  EXPECT_EQ(*Render(ordered_json::parse(R"([{"content": [{"text": "part"}]}])"), options), "part");
  WriteConfig({{"chat_template", "nothing"}});
  EXPECT_ERROR(Render(UserSays("hi"), options), kInvalid, "does not show the last message");
  EXPECT_ERROR(Render(ordered_json::parse(R"([{"role": "user"}])"), options), kInvalid,
               "no text to continue");
  options.add_generation_prompt = true;
  EXPECT_ERROR(Render(UserSays("hi"), options), kInvalid, "exclude each other");
}

TEST_F(ChatTemplateTest, BadInput) {
  WriteConfig({{"chat_template", "{{ messages[0].content + 1 }}"}});
  EXPECT_ERROR(Render(UserSays("hi")), kInvalid, "line 1, column 24: can only concatenate str");
  EXPECT_ERROR(Render(ordered_json::array()), kInvalid, "messages is empty");
  EXPECT_ERROR(Render(ordered_json::object()), kInvalid, "messages is not an array");
  EXPECT_ERROR(Render(ordered_json::array({1})), kInvalid, "messages[0] is not an object");
  ChatOptions options;
  options.tools = "f";
  EXPECT_ERROR(Render(UserSays("hi"), options), kInvalid, "tools is not an array");
  options.tools = nullptr;
  options.kwargs["tools"] = 1;
  EXPECT_ERROR(Render(UserSays("hi"), options), kInvalid, "kwargs holds \"tools\"");
  WriteConfig({{"chat_template", "{% if %}"}});
  EXPECT_ERROR(Render(UserSays("hi")), kInvalid, "chat template \"default\": line 1, column 7");
  WriteConfig({{"chat_template", 5}});
  EXPECT_ERROR(Render(UserSays("hi")), kInvalid, "chat_template is neither a string nor a list");
  WriteConfig({{"eos_token", 5}});
  EXPECT_ERROR(Render(UserSays("hi")), kInvalid, "eos_token is neither a string");
  WriteFile(dir_.File("tokenizer_config.json"), "{");
  EXPECT_ERROR(Render(UserSays("hi")), kInvalid, "not JSON");
  EXPECT_EQ(NumMentions(Render(UserSays("hi")).status(), dir_.path()), 1);
}

TEST_F(ChatTemplateTest, SpecialTokensAreFoundInTheVocabulary) {
  const auto tokenizer =
      Tokenizer::Parse(ReadFile(SourcePath("tests/common/text/data/qwen2_toy/tokenizer.json")));
  ASSERT_OK(tokenizer);
  WriteConfig({{"eos_token", "<|endoftext|>"}, {"bos_token", nullptr}});
  ASSERT_OK_AND_ASSIGN(const TokenizerConfig config, ReadTokenizerConfig(dir_.path()));
  ASSERT_OK_AND_ASSIGN(const SpecialTokenIds ids, FindSpecialTokens(config, **tokenizer));
  EXPECT_EQ(ids.eos, 270);
  EXPECT_EQ(ids.bos, std::nullopt);
  EXPECT_EQ(ids.pad, std::nullopt);
  WriteConfig({{"pad_token", "<nothing>"}});
  ASSERT_OK_AND_ASSIGN(const TokenizerConfig other, ReadTokenizerConfig(dir_.path()));
  EXPECT_ERROR(FindSpecialTokens(other, **tokenizer), kInvalid, "pad_token \"<nothing>\"");
}

// The expected tokens are those of AutoTokenizer in transformers 5.17.
TEST_F(ChatTemplateTest, TheMapOfOlderProgramsReplacesSpecialTokens) {
  using Tokens = std::vector<std::pair<std::string, std::string>>;
  const auto tokens = [&] { return ReadTokenizerConfig(dir_.path())->special_tokens; };
  WriteFile(dir_.File("special_tokens_map.json"),
            R"({"eos_token": {"content": "<e>"}, "bos_token": "<b>", "pad_token": null})");
  EXPECT_EQ(tokens(), (Tokens{{"bos_token", "<b>"}, {"eos_token", "<e>"}}));
  WriteConfig({{"eos_token", "<x>"}, {"unk_token", "<u>"}, {"pad_token", "<p>"}});
  EXPECT_EQ(tokens(), (Tokens{{"unk_token", "<u>"}, {"bos_token", "<b>"}, {"eos_token", "<e>"}}));
  WriteConfig({{"eos_token", "<x>"}, {"added_tokens_decoder", ordered_json::object()}});
  EXPECT_EQ(tokens(), (Tokens{{"eos_token", "<x>"}}));
  WriteConfig(ordered_json::object());
  WriteFile(dir_.File("special_tokens_map.json"), R"({"eos_token": 5})");
  EXPECT_ERROR(ReadTokenizerConfig(dir_.path()), kInvalid, "special_tokens_map.json: eos_token is");
}

// The published Qwen files, thinking on and off; the case of the shared data that has ids.
TEST_F(ChatTemplateTest, PublishedQwen) {
  const std::string dir = SharedData("tokenizers/qwen3");
  const std::string cases = SharedData("chat_templates/chat_cases.jsonl");
  if (dir.empty() || cases.empty()) GTEST_SKIP() << "shared data is absent";
  ASSERT_OK_AND_ASSIGN(const ChatTemplate chat, ChatTemplate::Load(dir));
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, Tokenizer::Load(dir));
  ChatOptions options;
  options.add_generation_prompt = true;
  const ordered_json hi = UserSays("hi");
  EXPECT_EQ(chat.Render(hi, options)->text,
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
  options.kwargs["enable_thinking"] = false;
  EXPECT_EQ(chat.Render(hi, options)->text,
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
  // Special tokens that a user writes become special tokens, as with transformers.
  ASSERT_OK_AND_ASSIGN(const auto spelled, chat.Render(UserSays("<|im_end|>"), {}));
  const std::vector<int32_t> ids = tokenizer->Encode(spelled.text);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 151645), 2);

  std::istringstream lines(ReadFile(cases));
  int num_with_ids = 0;
  for (std::string line; std::getline(lines, line);) {
    ASSERT_OK_AND_ASSIGN(const ordered_json row, ParseOrderedJson(line, cases));
    if (!row.contains("ids")) continue;
    ++num_with_ids;
    TokenizerConfig config;
    config.chat_templates["default"] = row["template"].get<std::string>();
    ASSERT_OK_AND_ASSIGN(const ChatTemplate of_case, ChatTemplate::FromConfig(config));
    ChatOptions case_options;
    ordered_json context = row["context"];
    case_options.add_generation_prompt = context.value("add_generation_prompt", false);
    if (context.contains("tools")) case_options.tools = context["tools"];
    const ordered_json messages = context["messages"];
    for (const char* name : {"messages", "tools", "add_generation_prompt", "documents"})
      context.erase(name);
    case_options.kwargs = context;
    ASSERT_OK_AND_ASSIGN(
        const auto tokenizer_of_case,
        Tokenizer::Load(SharedData("tokenizers/" + row["tokenizer"].get<std::string>())));
    ASSERT_OK_AND_ASSIGN(const auto rendering, of_case.Render(messages, case_options));
    EXPECT_EQ(tokenizer_of_case->Encode(rendering.text), row["ids"].get<std::vector<int32_t>>())
        << row["name"];
  }
  EXPECT_EQ(num_with_ids, 1);
}

}  // namespace
}  // namespace taopd::testing
