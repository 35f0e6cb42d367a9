#include "trainer/eval/openai/openai_client.h"

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

constexpr char kChat[] =
    ": a comment\r\n\r\n"
    "data: "
    "{\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\r\n\r\n"
    "event: message\n"
    "data: {\"choices\":[{\"delta\":{\"content\":\"Gr\xc3\xbc\xc3\x9f "
    "\"},\"finish_reason\":null}]}\n\n"
    "data:{\"choices\":[{\"delta\":{\"content\":\"Gott\"}}]}\n\n"
    "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"completion_tokens\":3}}\n\n"
    "data: [DONE]\n\n"
    "data: {\"choices\":[{\"delta\":{\"content\":\"too late\"}}]}\n\n";

// The pieces may end anywhere, also within a character.
TEST(OpenAiStream, TextComesFromPiecesOfAnySize) {
  const std::string_view reply = kChat;
  for (size_t size = 1; size <= reply.size(); ++size) {
    std::string text;
    OpenAiStream stream([&](std::string_view piece) { text += piece; });
    for (size_t at = 0; at < reply.size(); at += size) stream.Push(reply.substr(at, size));
    ASSERT_OK(stream.End());
    ASSERT_EQ(text, "Gr\xc3\xbc\xc3\x9f Gott") << size;
    ASSERT_EQ(stream.finish_reason(), "length");
  }
}

TEST(OpenAiStream, CompletionsHoldTheirTextInTheChoice) {
  std::string text;
  OpenAiStream stream([&](std::string_view piece) { text += piece; });
  stream.Push("data: {\"choices\":[{\"text\":\"4\",\"finish_reason\":\"stop\"}]}\n\n");
  // Some servers close the connection instead of [DONE].
  EXPECT_OK(stream.End());
  EXPECT_EQ(text, "4");
}

TEST(OpenAiStream, RepliesOfOtherFormsAreErrors) {
  const struct {
    const char* reply;
    absl::StatusCode code;
    const char* words;
  } cases[] = {
      {"{\"choices\":[]}", kDataLoss, "ended early"},
      {"", kDataLoss, "ended early"},
      {"data: {\"choices\":[{\"text\":\"4\"}]}\n", kDataLoss, "ended early"},
      {"data: 7\n", kDataLoss, "not a JSON object"},
      {"data: {nonsense\n", kDataLoss, "not a JSON object"},
      {"data: {\"choices\":[7]}\n", kDataLoss, "no choice"},
      {"data: {\"error\":{\"message\":\"too hot\"}}\ndata: [DONE]\n", kInternal, "too hot"},
  };
  for (const auto& c : cases) {
    OpenAiStream stream([](std::string_view) {});
    stream.Push(c.reply);
    EXPECT_ERROR(stream.End(), c.code, c.words);
  }
}

}  // namespace
}  // namespace taopd::testing
