// Calls of tools in a model's text, free and forced: whole texts, texts in pieces, and chats.
#include "server/http/chat/tool_calls.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "server/http/protocols/protocols.h"
#include "tests/server/http/protocol_fixture.h"
#include "tests/support/stub_engine.h"

namespace taopd::testing {
namespace {

using nlohmann::json;
using ::testing::MatchesRegex;

constexpr char kIdPattern[] = "chatcmpl-tool-[0-9a-f]+";

using Calls = std::vector<std::pair<std::string, std::string>>;  // names and arguments

// A split text as one value that can be compared.
json Parts(const json& content, const Calls& calls = {}) {
  json out = {{"content", content}};
  for (const auto& [name, arguments] : calls)
    out["calls"].push_back(json::array({name, arguments}));
  return out;
}

Calls CallsOf(const SplitAnswer& answer) {
  Calls calls;
  for (const ToolCall& call : answer.calls) calls.emplace_back(call.name, call.arguments);
  return calls;
}

json Split(ToolCallFormat format, const std::string& text) {
  const SplitAnswer answer = SplitToolCalls(format, text);
  return Parts(answer.content ? json(*answer.content) : json(), CallsOf(answer));
}

// Adds what a delta of a stream says of calls.
void Take(const AnswerDelta& delta, Calls* calls) {
  for (const ToolCallDelta& call : delta.calls) {
    if (call.name) {
      EXPECT_EQ(call.index, static_cast<int64_t>(calls->size()));
      EXPECT_EQ(call.arguments, "");
      calls->emplace_back(*call.name, "");
    } else {
      calls->at(static_cast<size_t>(call.index)).second += call.arguments;
    }
  }
}

// Reads the deltas of a text that comes in these pieces.
json Streamed(ToolCallFormat format, const std::vector<std::string>& pieces) {
  ToolCallStream stream(format);
  std::string content;
  Calls calls;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const AnswerDelta delta = stream.Push(pieces[i], i + 1 == pieces.size());
    content += delta.content;
    Take(delta, &calls);
  }
  EXPECT_EQ(stream.has_calls(), !calls.empty());
  return Parts(content, calls);
}

TEST(SplitToolCallsTest, Hermes) {
  const auto split = [](const std::string& text) { return Split(ToolCallFormat::kHermes, text); };
  EXPECT_EQ(split("no call"), Parts("no call"));
  EXPECT_EQ(split("<tool_call>\n{\"name\":\"f\",\"arguments\":{\"b\":1,\"a\":[\"\xC3\xA9\",1.5]}}\n"
                  "</tool_call>"),
            Parts(nullptr, {{"f", "{\"b\": 1, \"a\": [\"\xC3\xA9\", 1.5]}"}}));
  EXPECT_EQ(split("so <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call> and "
                  "<tool_call>{\"name\":\"g\",\"arguments\":null}"),
            Parts("so ", {{"f", "{}"}, {"g", "null"}}));
  // Text that is no call stays as it is.
  for (const char* text :
       {"<tool_call>", "<tool_call>{\"name\":\"f\"}</tool_call>", "<tool_call>f()</tool_call>",
        "<tool_call>{\"name\":5,\"arguments\":{}}</tool_call>",
        "<tool_call>{\"name\":\"f\",\"parameters\":{}}</tool_call>",
        "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call><tool_call>{",
        "{\"name\":\"f\",\"arguments\":{}}"}) {
    EXPECT_EQ(split(text), Parts(text));
  }
}

TEST(SplitToolCallsTest, Llama3) {
  const auto split = [](const std::string& text) {
    return Split(ToolCallFormat::kLlama3Json, text);
  };
  EXPECT_EQ(split("no call"), Parts("no call"));
  EXPECT_EQ(split("<|python_tag|>{\"name\": \"f\", \"parameters\": {\"x\": \"}\\\"{\"}}; "
                  "{\"name\": \"g\", \"arguments\": {}}"),
            Parts(nullptr, {{"f", "{\"x\": \"}\\\"{\"}"}, {"g", "{}"}}));
  // Brackets in strings are text.
  EXPECT_EQ(split("{\"name\": \"f\", \"parameters\": {\"x\": \"}}\"}}"),
            Parts(nullptr, {{"f", "{\"x\": \"}}\"}"}}));
  for (const char* text : {"{\"name\": \"f\"}", "{", "a { b", "{\"parameters\": {}}",
                           "{\"name\": \"f\", \"parameters\": {}}; {\"name\""}) {
    EXPECT_EQ(split(text), Parts(text));
  }
}

TEST(SplitToolCallsTest, WithoutAFormatTextIsText) {
  const std::string text = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
  EXPECT_EQ(Split(ToolCallFormat::kNone, text), Parts(text));
}

struct StreamCase {
  ToolCallFormat format;
  std::string text;
  json expected;
};

TEST(ToolCallStreamTest, GivesTheSameForEveryCutOfTheText) {
  const auto hermes = ToolCallFormat::kHermes, llama = ToolCallFormat::kLlama3Json;
  const std::vector<StreamCase> cases = {
      {hermes, "a <tool_cal> b", Parts("a <tool_cal> b")},
      {hermes, "ends <tool_", Parts("ends <tool_")},
      {hermes,
       "so <tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"}<\", \"y\": [1, {}]}}\n"
       "</tool_call>\n<tool_call>{\"arguments\": {\"z\":2}, \"name\": \"g\"}</tool_call> rest",
       Parts("so ", {{"f", "{\"x\": \"}<\", \"y\": [1, {}]}"}, {"g", "{\"z\":2}"}})},
      {hermes, "<tool_call>{\"name\":\"f\",\"arguments\":\"s\"}</tool_call>",
       Parts("", {{"f", "\"s\""}})},
      {hermes, "<tool_call>{\"name\":\"f\",\"arguments\":12 }</tool_call>",
       Parts("", {{"f", "12"}})},
      // Keys of inner objects are not the call's.
      {hermes, "<tool_call>{\"k\":{\"name\":\"h\"},\"name\":\"f\",\"arguments\":{\"name\":\"i\"}}",
       Parts("", {{"f", "{\"name\":\"i\"}"}})},
      // An escaped quote does not end a string.
      {hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":\"\\\"}}\"}}</tool_call>",
       Parts("", {{"f", "{\"x\":\"\\\"}}\"}"}})},
      // A name has been passed on before another one comes.
      {hermes, "<tool_call>{\"name\":\"f\",\"name\":\"g\",\"arguments\":{}}</tool_call>",
       Parts("", {{"f", "{}"}})},
      // Text between and after calls is dropped; a call that cannot be read is text.
      {hermes,
       "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>a<tool_call>f()</tool_call> x",
       Parts("<tool_call>f()</tool_call>", {{"f", "{}"}})},
      // Cut off by max_tokens.
      {hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\": 1",
       Parts("", {{"f", "{\"x\": 1"}})},
      // No call after all.
      {hermes, "<tool_call>f()</tool_call> x", Parts("<tool_call>f()</tool_call> x")},
      {hermes, "<tool_call>{\"na", Parts("<tool_call>{\"na")},
      {llama, "text {\"name\":\"f\"}", Parts("text {\"name\":\"f\"}")},
      {llama, "<|python_tag|>{\"name\":\"f\",\"parameters\":{\"x\":1}}; {\"name\":\"g\"}",
       Parts("", {{"f", "{\"x\":1}"}, {"g", ""}})},
      {llama, "{\"x\":1} y", Parts("{\"x\":1} y")},
      {llama, "<|python_tag|>{\"x\":1} y", Parts("<|python_tag|>{\"x\":1} y")},
      {llama, "{\"name\":\"f\",\"parameters\":{}} and {", Parts("and {", {{"f", "{}"}})},
      {llama, "<|python", Parts("<|python")},
  };
  for (const StreamCase& c : cases) {
    EXPECT_EQ(Streamed(c.format, {c.text}), c.expected) << c.text;
    std::vector<std::string> letters;
    for (const char letter : c.text) letters.push_back(std::string(1, letter));
    EXPECT_EQ(Streamed(c.format, letters), c.expected) << c.text;
    letters.push_back("");  // the end comes alone
    EXPECT_EQ(Streamed(c.format, letters), c.expected) << c.text;
    for (size_t i = 1; i < c.text.size(); ++i) {
      EXPECT_EQ(Streamed(c.format, {c.text.substr(0, i), c.text.substr(i)}), c.expected)
          << c.text << " at " << i;
    }
  }
}

TEST(ToolCallStreamTest, NothingIsHeldBackForLong) {
  ToolCallStream stream(ToolCallFormat::kHermes);
  EXPECT_EQ(stream.Push("hello <", false).content, "hello ");
  EXPECT_EQ(stream.Push("b", false).content, "<b");
  EXPECT_TRUE(stream.Push("<tool_call>{\"name\": \"f", false).empty());
  EXPECT_EQ(stream.Push("\", \"arguments\": {\"x", false).calls.size(), 2u);
  EXPECT_EQ(stream.Push("yz", false).calls.at(0).arguments, "yz");
}

// Texts that are calls because the request forces them.
Calls Split(ForcedCalls forced, const std::string& text) {
  const SplitAnswer answer = SplitForcedCalls(forced, "f", text);
  EXPECT_EQ(answer.content, "");
  return CallsOf(answer);
}

Calls Streamed(ForcedCalls forced, const std::vector<std::string>& pieces) {
  ForcedCallStream stream(forced, "f");
  Calls calls;
  for (const std::string& piece : pieces) {
    const AnswerDelta delta = stream.Push(piece);
    EXPECT_EQ(delta.content, "");
    Take(delta, &calls);
  }
  EXPECT_EQ(stream.has_calls(), !calls.empty());
  return calls;
}

TEST(ForcedCallsTest, AListIsSplit) {
  const auto list = ForcedCalls::kList;
  EXPECT_EQ(Split(list, "[{\"name\": \"g\", \"parameters\": {\"x\":[1,\"]}\"]}}]"),
            (Calls{{"g", "{\"x\": [1, \"]}\"]}"}}));
  EXPECT_EQ(Split(list, "[{\"name\":\"g\",\"parameters\":{}}, {\"parameters\":{},\"name\":\"h\"}]"),
            (Calls{{"g", "{}"}, {"h", "{}"}}));
  // Cut off by max_tokens, or no list of calls: nothing is called.
  for (const char* text :
       {"[{\"name\":\"g\",\"parameters\":{}}, {\"na", "", "[1]", "{}", "[{\"name\":\"g\"}]",
        "[{\"name\":\"g\",\"parameters\":{}}, {\"name\":5}]"}) {
    EXPECT_EQ(Split(list, text), Calls()) << text;
  }
}

TEST(ForcedCallsTest, TheArgumentsOfAFunctionStayAsTheyAre) {
  const auto function = ForcedCalls::kFunction;
  EXPECT_EQ(Split(function, "{\"x\":  1"), (Calls{{"f", "{\"x\":  1"}}));
  EXPECT_EQ(Split(function, " \n"), Calls());
  EXPECT_EQ(Streamed(function, {"", "{\"x\":", " 1}"}), (Calls{{"f", "{\"x\": 1}"}}));
}

TEST(ForcedCallsTest, AStreamGivesTheSameForEveryCut) {
  const std::string text =
      "[{\"name\": \"g\", \"parameters\": {\"x\": \"}{\"}}, {\"name\": \"h\", \"parameters\": "
      "{}}\n]";
  const Calls expected = {{"g", "{\"x\": \"}{\"}"}, {"h", "{}"}};
  EXPECT_EQ(Streamed(ForcedCalls::kList, {text}), expected);
  for (size_t i = 1; i < text.size(); ++i)
    EXPECT_EQ(Streamed(ForcedCalls::kList, {text.substr(0, i), text.substr(i)}), expected) << i;
  // The arguments come as the model writes them, before they are complete.
  EXPECT_EQ(Streamed(ForcedCalls::kList, {"[{\"name\": \"g\", \"parameters\": {\"x"}),
            (Calls{{"g", "{\"x"}}));
}

// Generates the tokens 1, 2, ... of a script, and then 0, which ends the text.
class ScriptEngine final : public StubEngine {
 public:
  explicit ScriptEngine(int32_t num_tokens) : num_tokens_(num_tokens) {}
  ~ScriptEngine() override {
    for (std::thread& thread : threads_) thread.join();
  }
  RequestHandle SubmitOne(InferenceRequest request, InferenceDone done) override {
    threads_.emplace_back([this, request = std::move(request), done = std::move(done)] {
      GeneratedTokens out = {.finish = FinishReason::kStop};
      for (int32_t i = 1; i <= num_tokens_ + 1; ++i) {
        const bool is_last = i > num_tokens_;
        out.ids.push_back(is_last ? 0 : i);
        if (request.should_stop) request.should_stop(out.ids.back());
        if (request.on_token) request.on_token(out, is_last);
      }
      InferenceResult result = {.generated = std::move(out)};
      done(std::move(result));
    });
    return threads_.size();
  }
  EngineLimits limits() const override { return kFakeLimits; }

 private:
  const int32_t num_tokens_;
  std::vector<std::thread> threads_;
};

// Token i is piece i - 1.
class PieceTokenizer final : public FakeTokenizer {
 public:
  explicit PieceTokenizer(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}
  std::vector<int32_t> Encode(std::string_view, bool) const override { return {1}; }
  std::string Decode(const std::vector<int32_t>& ids, bool) const override {
    std::string text;
    for (const int32_t id : ids) text += TokenBytes(id);
    return text;
  }
  std::string TokenBytes(int32_t id) const override {
    return id == 0 ? "" : pieces_.at(static_cast<size_t>(id) - 1);
  }

 private:
  const std::vector<std::string> pieces_;
};

class ToolChatTest : public ProtocolTest {
 protected:
  void Serve(ToolCallFormat format, std::vector<std::string> pieces) {
    auto model = std::make_shared<ServedModel>();
    model->engine = std::make_unique<ScriptEngine>(static_cast<int32_t>(pieces.size()));
    model->limits = model->engine->limits();
    model->tokenizer = std::make_unique<PieceTokenizer>(std::move(pieces));
    model->chat_template = MakeChatTemplate("{{ messages[0].content }}");
    model->tool_call_format = format;
    state_.SetReady(model);
  }
  static json Body(const json& more) {
    json body = {{"messages", {{{"role", "user"}, {"content", "b"}}}},
                 {"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}}};
    body.update(more);
    return body;
  }
  json Choice(const json& more) { return Ask(RunChat, Body(more))["choices"][0]; }
  // The deltas of a stream, and the last choice.
  std::pair<std::vector<json>, json> Deltas(const json& more) {
    std::vector<json> deltas;
    json last;
    for (const json& event : Events(RunChat, Body(more))) {
      last = event["choices"][0];
      deltas.push_back(last["delta"]);
    }
    return {deltas, last};
  }
};

const std::vector<std::string> kTwoCalls = {"I ask. ",
                                            "<tool_call>",
                                            "{\"name\": \"f\", \"argum",
                                            "ents\": {\"x\"",
                                            ": 1}}",
                                            "</tool_call>",
                                            "<tool_call>",
                                            "{\"name\": \"g\", ",
                                            "\"arguments\": {}}",
                                            "</tool_call>"};

TEST_F(ToolChatTest, CallsAreAnsweredAsToolCalls) {
  Serve(ToolCallFormat::kHermes, kTwoCalls);
  const json choice = Choice(json::object());
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "I ask. ");
  const json& calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_THAT(calls[0]["id"].get<std::string>(), MatchesRegex(kIdPattern));
  EXPECT_NE(calls[0]["id"], calls[1]["id"]);
  EXPECT_EQ(calls[0]["type"], "function");
  EXPECT_EQ(calls[0]["function"], (json{{"name", "f"}, {"arguments", "{\"x\": 1}"}}));
  EXPECT_EQ(calls[1]["function"], (json{{"name", "g"}, {"arguments", "{}"}}));
  EXPECT_EQ(Choice({{"parallel_tool_calls", false}})["message"]["tool_calls"].size(), 1u);
}

TEST_F(ToolChatTest, WithoutAChoiceOrAParserCallsStayInTheText) {
  Serve(ToolCallFormat::kHermes, kTwoCalls);
  std::string text;
  for (const std::string& piece : kTwoCalls) text += piece;
  for (const json& more : {json{{"tool_choice", "none"}}, json{{"tools", nullptr}}}) {
    const json choice = Choice(more);
    EXPECT_EQ(choice["message"]["content"], text);
    EXPECT_FALSE(choice["message"].contains("tool_calls"));
    EXPECT_EQ(choice["finish_reason"], "stop");
  }
  Serve(ToolCallFormat::kNone, kTwoCalls);
  EXPECT_EQ(Choice(json::object())["message"]["content"], text);
}

TEST_F(ToolChatTest, CallsAreStreamed) {
  Serve(ToolCallFormat::kHermes, kTwoCalls);
  const auto [deltas, last] = Deltas(json::object());
  EXPECT_EQ(last["finish_reason"], "tool_calls");
  std::string content;
  Calls calls;
  for (size_t i = 0; i < deltas.size(); ++i) {
    // Empty deltas are not sent, except the last one.
    EXPECT_TRUE(i + 1 == deltas.size() || !deltas[i].empty()) << i;
    content += deltas[i].value("content", "");
    for (json call : deltas[i].value("tool_calls", json::array())) {
      if (call["index"] == calls.size()) {
        EXPECT_THAT(call["id"].get<std::string>(), MatchesRegex(kIdPattern));
        EXPECT_EQ(call["type"], "function");
        calls.emplace_back(call["function"]["name"], "");
      } else {
        EXPECT_EQ(call.size(), 2u) << call;
        calls.at(call["index"]).second += call["function"]["arguments"];
      }
    }
  }
  EXPECT_EQ(content, "I ask. ");
  EXPECT_EQ(calls, (Calls{{"f", "{\"x\": 1}"}, {"g", "{}"}}));
  for (const json& delta : Deltas({{"parallel_tool_calls", false}}).first) {
    for (const json& call : delta.value("tool_calls", json::array())) EXPECT_EQ(call["index"], 0);
  }
}

TEST_F(ToolChatTest, Llama3WritesParameters) {
  Serve(ToolCallFormat::kLlama3Json, {"{\"name\": \"f\", ", "\"parameters\": {\"x\": 2}}"});
  const json choice = Choice(json::object());
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"],
            (json{{"name", "f"}, {"arguments", "{\"x\": 2}"}}));
}

}  // namespace
}  // namespace taopd::testing
