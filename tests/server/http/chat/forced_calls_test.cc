// Texts that are calls of tools because the request forces them.
#include "server/http/chat/tool_calls.h"

#include <gtest/gtest.h>

namespace taopd::testing {
namespace {

using Calls = std::vector<std::pair<std::string, std::string>>;  // names and arguments

Calls Split(ForcedCalls forced, const std::string& text) {
  const SplitAnswer answer = SplitForcedCalls(forced, "f", text);
  EXPECT_EQ(answer.content, "");
  Calls calls;
  for (const ToolCall& call : answer.calls) calls.emplace_back(call.name, call.arguments);
  return calls;
}

Calls Streamed(ForcedCalls forced, const std::vector<std::string>& pieces) {
  ForcedCallStream stream(forced, "f");
  Calls calls;
  for (const std::string& piece : pieces) {
    const AnswerDelta delta = stream.Push(piece);
    EXPECT_EQ(delta.content, "");
    for (const ToolCallDelta& call : delta.calls) {
      if (call.name) {
        EXPECT_EQ(call.index, static_cast<int64_t>(calls.size()));
        calls.emplace_back(*call.name, "");
      } else {
        calls.at(static_cast<size_t>(call.index)).second += call.arguments;
      }
    }
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

}  // namespace
}  // namespace taopd::testing
