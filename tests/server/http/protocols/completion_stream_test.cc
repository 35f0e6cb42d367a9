// Streams of completions without sockets.
#include <nlohmann/json.hpp>

#include "server/http/protocols/protocols.h"
#include "tests/server/http/protocol_fixture.h"

namespace taopd::testing {
namespace {

using nlohmann::json;

class CompletionStreamTest : public ProtocolTest {
 protected:
  std::vector<json> Events(const json& body) { return ProtocolTest::Events(RunCompletion, body); }
  // The same, with an engine that generates a token only when the client has all tokens before it.
  std::vector<json> SteppedEvents(const json& body, Run run = RunCompletion) {
    absl::Mutex mutex;
    size_t num_allowed = 1;
    fake_.engine->BeforeToken([&](size_t index) {
      absl::MutexLock lock(&mutex);
      const auto allowed = [&] { return index < num_allowed; };
      mutex.Await(absl::Condition(&allowed));
    });
    const std::vector<json> events = ProtocolTest::Events(run, body, [&] {
      absl::MutexLock lock(&mutex);
      ++num_allowed;
    });
    fake_.engine->BeforeToken(nullptr);
    return events;
  }
  json Whole(json body) {
    body.erase("stream");
    body.erase("stream_options");
    return Ask(RunCompletion, body)["choices"];
  }
};

TEST_F(CompletionStreamTest, ChunksHaveVllmsKeysAndTheirPartsMakeTheWholeAnswer) {
  const json body = {
      {"prompt", {3}}, {"max_tokens", 5}, {"ignore_eos", true}, {"return_token_ids", true},
      {"logprobs", 2}, {"stream", true},  {"temperature", 0}};
  const std::vector<json> events = Events(body);
  const json whole = Whole(body)[0];
  std::string text;
  json ids = json::array(), logprobs = {{"text_offset", json::array()},
                                        {"token_logprobs", json::array()},
                                        {"tokens", json::array()},
                                        {"top_logprobs", json::array()}};
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i]["object"], "text_completion");
    EXPECT_EQ(events[i].contains("usage"), false);
    EXPECT_EQ(events[i].contains("system_fingerprint"), i + 1 == events.size());
    const json& choice = events[i]["choices"][0];
    EXPECT_EQ(choice.size(), 7u);
    EXPECT_EQ(choice["prompt_token_ids"], i == 0 ? json({3}) : json());
    EXPECT_EQ(choice["finish_reason"], i + 1 == events.size() ? json("length") : json());
    text += choice["text"];
    for (const json& id : choice["token_ids"]) ids.push_back(id);
    for (auto& [name, list] : logprobs.items()) {
      for (const json& item : choice["logprobs"][name]) list.push_back(item);
    }
  }
  EXPECT_EQ(text, whole["text"]);
  EXPECT_EQ(ids, whole["token_ids"]);
  EXPECT_EQ(logprobs, whole["logprobs"]);
}

TEST_F(CompletionStreamTest, EveryTokenIsSentAsItIsGenerated) {
  const std::vector<json> events = SteppedEvents(
      {{"prompt", {3}}, {"max_tokens", 3}, {"ignore_eos", true}, {"return_token_ids", true}});
  ASSERT_EQ(events.size(), 3u);
  for (const json& event : events) EXPECT_EQ(event["choices"][0]["token_ids"].size(), 1u);
}

TEST_F(CompletionStreamTest, UsageComesLastOrWithEveryChunk) {
  json body = {{"prompt", {{3}, {4, 5}}},
               {"max_tokens", 2},
               {"ignore_eos", true},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  std::vector<json> events = Events(body);
  const json total = {{"prompt_tokens", 3}, {"total_tokens", 7}, {"completion_tokens", 4}};
  EXPECT_EQ(events.back()["choices"], json::array());
  EXPECT_EQ(events.back()["usage"], total);
  EXPECT_FALSE(events[0].contains("usage") || events[0].contains("system_fingerprint"));
  body["stream_options"]["continuous_usage_stats"] = true;
  events = Events(body);
  EXPECT_EQ(events.back()["usage"], total);
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const json& usage = events[i]["usage"];
    EXPECT_EQ(usage["prompt_tokens"], events[i]["choices"][0]["index"] == 0 ? 1 : 2);
    EXPECT_EQ(usage["total_tokens"],
              usage["prompt_tokens"].get<int>() + usage["completion_tokens"].get<int>());
  }
}

TEST_F(CompletionStreamTest, EchoShowsThePromptInTheFirstChunkOfEachChoice) {
  const json body = {{"prompt", {{3, 4}, {5}}}, {"max_tokens", 2}, {"ignore_eos", true},
                     {"logprobs", 1},           {"echo", true},    {"stream", true}};
  std::map<int, std::string> texts;
  std::map<int, json> tokens, offsets;
  for (const json& event : Events(body)) {
    const json& choice = event["choices"][0];
    texts[choice["index"]] += choice["text"];
    for (const json& token : choice["logprobs"]["tokens"]) tokens[choice["index"]].push_back(token);
    for (const json& at : choice["logprobs"]["text_offset"]) offsets[choice["index"]].push_back(at);
  }
  const json whole = Whole(body);
  for (int i : {0, 1}) {
    EXPECT_EQ(texts[i], whole[i]["text"]);
    EXPECT_EQ(tokens[i], whole[i]["logprobs"]["tokens"]);
    EXPECT_EQ(offsets[i], whole[i]["logprobs"]["text_offset"]);
  }
}

TEST_F(CompletionStreamTest, EchoWithoutTokensIsOneChunk) {
  const std::vector<json> events = Events(
      {{"prompt", {3, 4}}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 0}, {"stream", true}});
  ASSERT_EQ(events.size(), 1u);
  const json& choice = events[0]["choices"][0];
  EXPECT_EQ(choice["text"], "de");
  EXPECT_EQ(choice["logprobs"]["tokens"], json({"d", "e"}));
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["prompt_token_ids"], json({3, 4}));
}

TEST_F(CompletionStreamTest, WhatMayBecomeAStopStringIsHeldBack) {
  json body = {{"prompt", {3}}, {"max_tokens", 12}, {"ignore_eos", true}};
  const std::string text = Whole(body)[0]["text"];
  body["stop"] = text.substr(4, 3);
  const std::string before = text.substr(0, text.find(text.substr(4, 3)));
  std::string sent;
  const std::vector<json> events = SteppedEvents(body);
  for (const json& event : events) {
    sent += event["choices"][0]["text"];
    EXPECT_TRUE(before.starts_with(sent)) << sent;
  }
  EXPECT_EQ(sent, before);
  const json& last = events.back()["choices"][0];
  EXPECT_EQ(last["finish_reason"], "stop");
  EXPECT_EQ(last["stop_reason"], body["stop"]);
}

TEST_F(CompletionStreamTest, StopTokensHaveNoText) {
  json body = {{"prompt", {3}}, {"max_tokens", 5}, {"return_token_ids", true}};
  const json ids = Whole(body)[0]["token_ids"];
  body["stop_token_ids"] = {ids[2]};
  std::string sent;
  json last;
  for (const json& event : Events(body)) {
    last = event["choices"][0];
    sent += last["text"];
  }
  EXPECT_EQ(sent.size(), 2u);
  EXPECT_EQ(last["stop_reason"], ids[2]);
}

TEST_F(CompletionStreamTest, ErrorsBeforeTheFirstTokenAreNoStream) {
  fake_.engine->FailWith(ResourceExhausted("full"));
  EXPECT_EQ(Refused(RunCompletion, {{"prompt", {3}}, {"stream", true}}).status, 429);
}

TEST_F(CompletionStreamTest, LaterErrorsAreEvents) {
  fake_.engine->FailAfter(2, Internal("the device is lost"));
  const std::vector<json> events =
      Events({{"prompt", {3}}, {"max_tokens", 5}, {"ignore_eos", true}});
  EXPECT_EQ(events.back()["error"]["message"], "the device is lost");
  EXPECT_EQ(events.back()["error"]["code"], 500);
}

TEST_F(CompletionStreamTest, TheWorkIsCancelledWhenTheClientHasGone) {
  fake_.engine->Hold(true);
  std::thread client([&] {
    fake_.engine->WaitForQueued(2);
    is_gone_ = true;
  });
  EXPECT_EQ(Refused(RunCompletion, {{"prompt", {{3}, {4}}}, {"stream", true}}).status, 499);
  client.join();
  fake_.engine->WaitForCancels(2);
}

TEST_F(CompletionStreamTest, SglangStreamsHoldBackTheBeginningOfAStopString) {
  json body = {{"input_ids", {3}},
               {"sampling_params", {{"max_new_tokens", 4}, {"temperature", 0}}}};
  const std::string text = Ask(RunSglang, body)["text"];
  ASSERT_EQ(text.size(), 4u);
  body["sampling_params"]["stop"] = text.substr(1, 2);
  const std::vector<json> events = SteppedEvents(body, RunSglang);
  ASSERT_EQ(events.size(), 3u);
  for (const json& event : events) EXPECT_EQ(event["text"], text.substr(0, 1));
}

TEST_F(CompletionStreamTest, ARefusedPieceCancelsTheWork) {
  // The engine goes on when the stream has cancelled what it had asked for.
  fake_.engine->BeforeToken([this](size_t index) {
    if (index == 1) fake_.engine->WaitForCancels(2);
  });
  const auto answer = Call(RunCompletion, {{"prompt", {3}},
                                           {"max_tokens", 60},
                                           {"ignore_eos", true},
                                           {"n", 2},
                                           {"seed", 1},
                                           {"stream", true}});
  int num_pieces = 0;
  ASSERT_OK(answer);
  std::get<EventStream>(*answer).run([&](std::string_view) {
    ++num_pieces;
    return false;
  });
  EXPECT_EQ(num_pieces, 1);
  fake_.engine->WaitForCancels(2);
  fake_.engine->BeforeToken(nullptr);
}

}  // namespace
}  // namespace taopd::testing
