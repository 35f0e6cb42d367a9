// Chat completions without sockets: messages, templates, answers and streams.
#include "server/http/protocols/protocols.h"

#include <nlohmann/json.hpp>

#include "server/generation/request_fields.h"
#include "server/http/chat/chat.h"
#include "tests/server/http/protocol_fixture.h"

namespace taopd::testing {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Letters only: the fake tokenizer knows no others.
constexpr char kTemplate[] =
    "{%- for m in messages -%}{{ m.role[0] }}{{ m.content }}{%- endfor -%}"
    "{%- if tools -%}t{{ tools[0].function.name }}{%- endif -%}"
    "{%- if add_generation_prompt -%}{{ 'z' if enable_thinking else 'y' }}{%- endif -%}";

class ChatTest : public ProtocolTest {
 protected:
  ChatTest() { SetTemplate(kTemplate); }
  void SetTemplate(const std::string& source) {
    fake_.model->chat_template = MakeChatTemplate(source);
  }
  static json WithMessages(json body) {
    if (!body.contains("messages")) body["messages"] = {{{"role", "user"}, {"content", "bc"}}};
    return body;
  }
  json Chat(const json& body) { return Ask(RunChat, WithMessages(body)); }
  HttpError Refused(const json& body) { return ProtocolTest::Refused(RunChat, WithMessages(body)); }
  std::vector<json> Events(const json& body) {
    return ProtocolTest::Events(RunChat, WithMessages(body));
  }
  std::string PromptText(json body) {
    body["return_prompt_text"] = true;
    body["max_tokens"] = 1;
    return Chat(body)["prompt_text"];
  }
};

TEST_F(ChatTest, WholeAnswerInVllmsShape) {
  const json answer = Chat({{"max_tokens", 2},
                            {"temperature", 0},
                            {"return_token_ids", true},
                            {"ignore_eos", true},
                            {"request_id", "r"}});
  EXPECT_EQ(answer["id"], "chatcmpl-r");
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["prompt_token_ids"], json({'u' - 'a', 1, 2, 'y' - 'a'}));
  const json& choice = answer["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["content"].get<std::string>().size(), 2u);
  EXPECT_TRUE(choice["message"].contains("reasoning"));
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["token_ids"].size(), 2u);
  EXPECT_EQ(answer["usage"]["total_tokens"], 6);
  for (const char* key : {"service_tier", "prompt_logprobs", "prompt_text", "kv_transfer_params",
                          "ec_transfer_params", "metrics"}) {
    EXPECT_TRUE(answer.contains(key) && answer[key].is_null()) << key;
  }
}

TEST_F(ChatTest, LogprobsHaveBytesAndTops) {
  const json answer = Chat({{"max_tokens", 1},
                            {"temperature", 0},
                            {"logprobs", true},
                            {"top_logprobs", 2},
                            {"prompt_logprobs", 1}});
  const json& entry = answer["choices"][0]["logprobs"]["content"][0];
  const std::string token = entry["token"];
  EXPECT_EQ(entry["bytes"], json({static_cast<int>(token[0])}));
  EXPECT_EQ(entry["top_logprobs"].size(), 2u);
  EXPECT_EQ(entry["top_logprobs"][0]["logprob"], entry["logprob"]);
  EXPECT_EQ(answer["prompt_logprobs"].size(), 4u);  // at the top level
  const json none = Chat({{"max_tokens", 1}, {"logprobs", true}});
  EXPECT_EQ(none["choices"][0]["logprobs"]["content"][0]["top_logprobs"], json::array());
}

TEST_F(ChatTest, StreamOpensWithTheRole) {
  const json body = {
      {"max_tokens", 3}, {"temperature", 1},   {"n", 2},
      {"seed", 1},       {"ignore_eos", true}, {"stream_options", {{"include_usage", true}}}};
  const std::vector<json> events = Events(body);
  const json opening = {{"role", "assistant"}, {"content", ""}};
  EXPECT_EQ(events[0]["choices"][0]["delta"], opening);
  EXPECT_EQ(events[1]["choices"][0]["delta"], opening);
  EXPECT_EQ(events[1]["choices"][0]["index"], 1);
  EXPECT_FALSE(events[0]["choices"][0].contains("token_ids"));
  EXPECT_TRUE(events[0].contains("prompt_token_ids"));
  std::map<int, std::string> texts;
  for (size_t i = 2; i + 1 < events.size(); ++i) {
    const json& choice = events[i]["choices"][0];
    texts[choice["index"]] += choice["delta"]["content"];
    EXPECT_EQ(choice["finish_reason"].is_null(), !choice.contains("stop_reason"));
  }
  EXPECT_EQ(events.back()["choices"], json::array());
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 6);
  json whole = body;
  whole.erase("stream_options");
  const json choices = Chat(whole)["choices"];
  EXPECT_EQ(texts[0], choices[0]["message"]["content"]);
  EXPECT_EQ(texts[1], choices[1]["message"]["content"]);
}

TEST_F(ChatTest, TheTemplateSeesToolsAndKwargs) {
  EXPECT_EQ(PromptText(json::object()), "ubcy");
  EXPECT_EQ(PromptText({{"chat_template_kwargs", {{"enable_thinking", true}}}}), "ubcz");
  EXPECT_EQ(PromptText({{"reasoning_effort", "low"}}), "ubcz");
  EXPECT_EQ(PromptText({{"reasoning_effort", "none"}}), "ubcy");
  EXPECT_EQ(PromptText({{"add_generation_prompt", false}}), "ubc");
  const json tools = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  EXPECT_EQ(PromptText({{"tools", tools}}), "ubctfy");
  EXPECT_EQ(PromptText({{"tools", tools}, {"tool_choice", "none"}}), "ubctfy");
}

TEST_F(ChatTest, ContentPartsAreJoinedOrPassed) {
  const json parts = {{{"type", "text"}, {"text", "b"}}, {{"type", "text"}, {"text", "c"}}};
  SetTemplate("{{ messages[0].content | replace('\n', 'x') }}");
  EXPECT_EQ(PromptText({{"messages", {{{"role", "user"}, {"content", parts}}}}}), "bxc");
  for (const char* loop : {"message.content", "message['content']"}) {
    SetTemplate(std::string("{%- for message in messages -%}{%- for part in ") + loop +
                " -%}{{ part.text }}q{%- endfor -%}{%- endfor -%}");
    EXPECT_EQ(PromptText({{"messages", {{{"role", "user"}, {"content", parts}}}}}), "bqcq") << loop;
    EXPECT_EQ(PromptText({{"messages", {{{"role", "user"}, {"content", "bc"}}}}}), "bcq") << loop;
  }
}

TEST_F(ChatTest, ContinuesAndEchoesTheLastMessage) {
  const json messages = {{{"role", "user"}, {"content", "b"}},
                         {{"role", "assistant"}, {"content", "cd"}}};
  json body = {{"messages", messages},
               {"add_generation_prompt", false},
               {"continue_final_message", true},
               {"echo", true},
               {"max_tokens", 2},
               {"ignore_eos", true},
               {"temperature", 0}};
  EXPECT_EQ(PromptText(body), "ubacd");
  const std::string whole = Chat(body)["choices"][0]["message"]["content"];
  EXPECT_EQ(whole.substr(0, 2), "cd");
  EXPECT_EQ(whole.size(), 4u);
  std::string streamed;
  for (const json& event : Events(body)) streamed += event["choices"][0]["delta"]["content"];
  EXPECT_EQ(streamed, whole);
  body["add_generation_prompt"] = true;
  EXPECT_EQ(Refused(body).status, 400);
}

TEST_F(ChatTest, ErrorsNameTheField) {
  struct Case {
    json body;
    std::optional<std::string> param;
    const char* message;
  };
  const auto user = [](const json& content) -> json {
    return {{"messages", {{{"role", "user"}, {"content", content}}}}};
  };
  const std::vector<Case> cases = {
      {{{"messages", json::array()}}, "messages", "empty conversation"},
      {{{"messages", "x"}}, "body.messages", "a valid list"},
      {{{"messages", {5}}}, "body.messages.0", "a valid dictionary"},
      {{{"messages", {{{"content", "x"}}}}}, "body.messages.0.role", "a valid string"},
      {user(5), "body.messages.0.content", "a valid string"},
      {user({"x"}), "body.messages.0.content.0", "a valid dictionary"},
      {user({{{"type", "image_url"}}}), "messages", "the model reads text only"},
      {user({{{"type", "text"}, {"text", 5}}}), "body.messages.0.content.0.text", "a valid string"},
      {{{"max_tokens", 0}}, "max_tokens", "must be at least 1"},
      {{{"max_completion_tokens", 0}, {"max_tokens", 5}}, "max_tokens", "must be at least 1"},
      {{{"top_logprobs", 2}}, "top_logprobs", "`logprobs` must be set to true"},
      {{{"top_logprobs", 9}, {"logprobs", true}}, "top_logprobs", "greater than max allowed: 8"},
      {{{"logprobs", 5}}, "body.logprobs", "a valid boolean"},
      {{{"tools", json::array()}}, "tools", "must not be an empty array"},
      {{{"tool_choice", "auto"}}, "tool_choice", "`tools` must be set"},
      {{{"tools", {{{"type", "function"}}}}, {"tool_choice", "required"}},
       "tool_choice",
       "no function tool"},
      {{{"tools", {{{"type", "function"}}}}, {"tool_choice", "must"}},
       "tool_choice",
       "Invalid value for `tool_choice`: must!"},
      {{{"chat_template", "x"}}, "chat_template", "not supported"},
      {{{"reasoning_effort", "a lot"}}, "body.reasoning_effort", "'none', 'minimal'"},
      {{{"chat_template_kwargs", {{"messages", 5}}}}, "messages", "kwargs holds \"messages\""},
      {{{"stream", true}, {"prompt_logprobs", 1}}, "prompt_logprobs", "not available"},
      {{{"messages",
         {{{"role", "assistant"},
           {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", "{"}}}}}}}}}},
       "messages",
       "arguments"},
  };
  for (const Case& c : cases) {
    const HttpError error = Refused(c.body);
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.param, c.param) << error.message;
    EXPECT_THAT(error.message, HasSubstr(c.message));
  }
  fake_.model->chat_template.reset();
  EXPECT_THAT(Refused(json::object()).message, HasSubstr("no chat template"));
}

TEST(ChatMessagesTest, ArgumentsOfAllCallsTogetherAreLimited) {
  const ordered_json call = {
      {"function", {{"name", "f"}, {"arguments", "[\"" + std::string(1 << 20, 'x') + "\"]"}}}};
  const ordered_json message = {{"role", "assistant"}, {"tool_calls", {call, call}}};
  ordered_json messages = ordered_json::array({message});
  EXPECT_OK(NormalizeMessages(/*as_parts=*/false, &messages));
  messages = ordered_json::array({message, message});
  const absl::Status error = NormalizeMessages(/*as_parts=*/false, &messages);
  EXPECT_EQ(FieldOf(error), "messages");
  EXPECT_THAT(error.message(), HasSubstr("more than the limit of 4194304 bytes"));
}

TEST(ChatMessagesTest, ToolCallsAndReasoningAreNormalized) {
  ordered_json messages = ordered_json::parse(
      R"([{"role":"assistant","content":null,"reasoning_content":"r",
           "tool_calls":[{"function":{"name":"f","arguments":"{\"b\": 1, \"a\": 2}"}},
                         {"function":{"name":"g","arguments":""}}]}])");
  ASSERT_OK(NormalizeMessages(/*as_parts=*/false, &messages));
  EXPECT_EQ(messages[0]["content"], "");
  EXPECT_EQ(messages[0]["reasoning"], "r");
  EXPECT_EQ(messages[0]["tool_calls"][0]["function"]["arguments"].dump(), R"({"b":1,"a":2})");
  EXPECT_EQ(messages[0]["tool_calls"][1]["function"]["arguments"], ordered_json::object());
}

}  // namespace
}  // namespace taopd::testing
