// Requests that clients send and that a server may easily misread: without a length, and with
// numbers of any size.
#include <nlohmann/json.hpp>

#include "tests/server/http/http_server_fixture.h"

namespace taopd::testing {
namespace {

using nlohmann::json;

using HttpRequestsTest = HttpServerFixture;

// RFC 9112, 6.3: the body is empty. Routes that need one say so.
TEST_F(HttpRequestsTest, APostWithoutALengthHasAnEmptyBody) {
  Ready();
  const auto post = [this](const std::string& path, const std::string& framing = "") {
    return Raw("POST " + path + " HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n" +
               framing + "\r\n");
  };
  EXPECT_THAT(post("/ping"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(post("/ping", "Content-Length: 0\r\nConnection: close\r\n"),
              StartsWith("HTTP/1.1 200 "));
  // A probe must have one: it is answered before more has arrived.
  for (const char* framing : {"Content-Length: 33554432\r\n", "Transfer-Encoding: chunked\r\n"})
    EXPECT_THAT(post("/ping", framing), StartsWith("HTTP/1.1 413 "));
  for (const char* path :
       {"/v1/completions", "/v1/chat/completions", "/generate", "/tokenize", "/detokenize",
        "/inference/v1/generate", "/get_sequence_logprobs/", "/get_sequence_logprobs"}) {
    const std::string answer = post(path);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 ")) << path;
    EXPECT_THAT(answer, HasSubstr("{\"error\":{\"message\":")) << path;
  }
}

// Any number of tokens that is more than the context leaves means "as many as there are".
TEST_F(HttpRequestsTest, MaxTokensOfAnySizeAreCutAlike) {
  Ready();
  const std::pair<const char*, const char*> routes[] = {
      {"/v1/completions", R"({"prompt":[1,2],"ignore_eos":true,"max_tokens":%})"},
      {"/inference/v1/generate",
       R"({"token_ids":[1,2],)"
       R"("sampling_params":{"ignore_eos":true,"detokenize":false,"max_tokens":%}})"},
      {"/generate",
       R"({"input_ids":[1,2],"sampling_params":{"ignore_eos":true,"max_new_tokens":%}})"},
  };
  for (const auto& [path, form] : routes) {
    for (const char* number :
         {"1000", "9007199254740993", "1e18", "9223372036854775807", "9223372036854775808",
          "18446744073709551616", "123456789012345678901234567890", "\"99999999999999999999\""}) {
      std::string body = form;
      body.replace(body.find('%'), 1, number);
      const auto answer = client_->Post(path, body, "application/json");
      ASSERT_TRUE(answer);
      EXPECT_EQ(answer->status, 200) << body << answer->body;
      EXPECT_EQ(fake_.engine->seen().back().sampling->max_new_tokens, 62) << body;
    }
    std::string body = form;
    body.replace(body.find('%'), 1, "-18446744073709551616");
    EXPECT_EQ(client_->Post(path, body, "application/json")->status, 400) << body;
  }
}

TEST_F(HttpRequestsTest, NumbersBeyond64BitsAreRefusedByTheirFields) {
  Ready();
  for (const char* field : {"n", "seed", "top_k", "min_tokens", "logprobs", "prompt_logprobs"}) {
    for (const char* number : {"18446744073709551616", "1e30"}) {
      const auto answer =
          Complete("{\"prompt\":[1],\"" + std::string(field) + "\":" + number + "}");
      EXPECT_EQ(answer->status, 400) << field;
      EXPECT_EQ(json::parse(answer->body)["error"]["param"], field) << answer->body;
    }
  }
  EXPECT_EQ(Complete("{\"prompt\":[1],\"max_tokens\":1e400}")->status,
            400);  // as in vLLM: infinite
}

TEST_F(HttpRequestsTest, NoMemoryOfMessagesIsHeldWhenIdle) {
  Ready();
  EXPECT_EQ(Complete("{\"prompt\":[1]}")->status, 200);
  EXPECT_THAT(client_->Get("/metrics")->body,
              HasSubstr("\ntaopd_teacher_message_memory_bytes 0\n"));
}

}  // namespace
}  // namespace taopd::testing
