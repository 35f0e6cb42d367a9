// The rules that every protocol that generates has in common, over sockets: each case goes through
// each protocol, and the engine must be asked for the same, or the same limit must refuse it.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "proto/taopd/v1/teacher.grpc.pb.h"
#include "proto/vllm/engine.grpc.pb.h"
#include "proto/vllm/inference.grpc.pb.h"
#include "server/grpc/grpc_server.h"
#include "server/http/http_server.h"
#include "tests/server/http/dialect_fixture.h"

namespace taopd {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A client's wishes. Those that are not set are left out of the request.
struct Ask {
  std::string prompt = "dfh";  // ids 3, 5 and 7
  int64_t max_tokens = 2;
  std::optional<std::string> cache_salt = {};
  std::optional<int64_t> n = {};
  std::optional<int64_t> seed = {};
  std::optional<int64_t> truncate = {};
  float temperature = 0.5f;
};

struct Servers {
  httplib::Client http;
  std::shared_ptr<grpc::Channel> grpc;
};

std::vector<uint32_t> IdsOf(const std::string& prompt) {
  std::vector<uint32_t> ids;
  for (const char letter : prompt) ids.push_back(static_cast<uint32_t>(letter - 'a'));
  return ids;
}

// The functions that send return the error that the client is told; empty for success.
std::string Post(Servers& servers, const char* path, const json& body) {
  const httplib::Result result = servers.http.Post(path, body.dump(), "application/json");
  if (!result) return "no answer";
  const json answer = json::parse(result->body, nullptr, /*allow_exceptions=*/false);
  return result->status == 200 ? "" : answer["error"]["message"].get<std::string>();
}

template <typename Value>
void Set(json* object, const char* name, const std::optional<Value>& value) {
  if (value) (*object)[name] = *value;
}

json VllmFields(const Ask& ask) {
  json fields = {
      {"max_tokens", ask.max_tokens}, {"temperature", ask.temperature}, {"ignore_eos", true}};
  Set(&fields, "n", ask.n);
  Set(&fields, "seed", ask.seed);
  return fields;
}

std::string Completions(Servers& servers, const Ask& ask) {
  json body = VllmFields(ask);
  body["prompt"] = IdsOf(ask.prompt);
  Set(&body, "cache_salt", ask.cache_salt);
  Set(&body, "truncate_prompt_tokens", ask.truncate);
  return Post(servers, "/v1/completions", body);
}

std::string Chat(Servers& servers, const Ask& ask) {
  json body = VllmFields(ask);
  body["messages"] = {{{"role", "user"}, {"content", ask.prompt}}};
  Set(&body, "cache_salt", ask.cache_salt);
  Set(&body, "truncate_prompt_tokens", ask.truncate);
  return Post(servers, "/v1/chat/completions", body);
}

std::string Tokens(Servers& servers, const Ask& ask) {
  json body = {{"token_ids", IdsOf(ask.prompt)}, {"sampling_params", VllmFields(ask)}};
  Set(&body, "cache_salt", ask.cache_salt);
  return Post(servers, "/inference/v1/generate", body);
}

std::string Sglang(Servers& servers, const Ask& ask) {
  json sampling = {
      {"max_new_tokens", ask.max_tokens}, {"temperature", ask.temperature}, {"ignore_eos", true}};
  Set(&sampling, "n", ask.n);
  Set(&sampling, "sampling_seed", ask.seed);
  json body = {{"input_ids", IdsOf(ask.prompt)}, {"sampling_params", sampling}};
  Set(&body, "cache_salt", ask.cache_salt);
  return Post(servers, "/generate", body);
}

std::string VllmInference(Servers& servers, const Ask& ask) {
  vllm::GenerateRequest request;
  for (const uint32_t id : IdsOf(ask.prompt)) request.mutable_token_ids()->add_ids(id);
  request.set_temperature(ask.temperature);
  request.mutable_stopping()->set_max_new_tokens(static_cast<uint32_t>(ask.max_tokens));
  request.mutable_stopping()->set_ignore_eos(true);
  if (ask.cache_salt) request.mutable_kv()->set_cache_salt(*ask.cache_salt);
  if (ask.seed) request.mutable_sampling()->set_seed(*ask.seed);
  if (ask.truncate) request.set_truncate_prompt_tokens(static_cast<uint32_t>(*ask.truncate));
  grpc::ClientContext context;
  vllm::GenerateResponse response;
  return vllm::Inference::NewStub(servers.grpc)
      ->Generate(&context, request, &response)
      .error_message();
}

std::string VllmEngine(Servers& servers, const Ask& ask) {
  vllm::grpc::engine::GenerateRequest request;
  request.set_request_id("r");
  for (const uint32_t id : IdsOf(ask.prompt)) request.mutable_tokenized()->add_input_ids(id);
  auto& sampling = *request.mutable_sampling_params();
  sampling.set_temperature(ask.temperature);
  sampling.set_max_tokens(static_cast<uint32_t>(ask.max_tokens));
  sampling.set_ignore_eos(true);
  if (ask.n) sampling.set_n(static_cast<uint32_t>(*ask.n));
  if (ask.seed) sampling.set_seed(static_cast<int32_t>(*ask.seed));
  if (ask.truncate) sampling.set_truncate_prompt_tokens(static_cast<int32_t>(*ask.truncate));
  grpc::ClientContext context;
  auto reader = vllm::grpc::engine::VllmEngine::NewStub(servers.grpc)->Generate(&context, request);
  vllm::grpc::engine::GenerateResponse message;
  while (reader->Read(&message)) continue;
  return reader->Finish().error_message();
}

std::string Teacher(Servers& servers, const Ask& ask) {
  v1::GenerateRequest request;
  for (const uint32_t id : IdsOf(ask.prompt)) request.add_token_ids(id);
  request.mutable_sampling()->set_temperature(ask.temperature);
  request.set_max_new_tokens(static_cast<uint32_t>(ask.max_tokens));
  request.set_ignore_eos(true);
  if (ask.cache_salt) request.set_cache_salt(*ask.cache_salt);
  if (ask.n) request.set_n(static_cast<uint32_t>(*ask.n));
  if (ask.seed) request.set_seed(static_cast<uint64_t>(*ask.seed));
  grpc::ClientContext context;
  auto reader = v1::Teacher::NewStub(servers.grpc)->Generate(&context, request);
  v1::GenerateResponse message;
  while (reader->Read(&message)) continue;
  return reader->Finish().error_message();
}

// A protocol, and which of the fields its requests have.
struct Protocol {
  const char* name;
  std::string (*send)(Servers& servers, const Ask& ask);
  bool has_salt = true;
  bool has_n = true;
  bool has_truncation = true;
  bool has_signed_seed = true;
  bool cuts_max_tokens = true;
  bool has_greedy_choices = false;  // takes n > 1 without a temperature
};

constexpr Protocol kProtocols[] = {
    {.name = "/v1/completions", .send = Completions},
    {.name = "/v1/chat/completions", .send = Chat},
    {.name = "/inference/v1/generate", .send = Tokens, .has_truncation = false},
    {.name = "/generate", .send = Sglang, .has_truncation = false},
    {.name = "vllm.Inference", .send = VllmInference, .has_n = false},
    {.name = "VllmEngine", .send = VllmEngine, .has_salt = false},
    {.name = "taopd.v1",
     .send = Teacher,
     .has_truncation = false,
     .has_signed_seed = false,
     .cuts_max_tokens = false,
     .has_greedy_choices = true},
};

// The texts of a stream's events, in their order, by the path of the text in an event.
std::vector<std::string> StreamedTexts(Servers& servers, const char* path, json body,
                                       const char* text) {
  body["stream"] = true;
  const httplib::Result result = servers.http.Post(path, body.dump(), "application/json");
  std::vector<std::string> texts;
  if (!result) return texts;
  std::istringstream lines(result->body);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data: {")) continue;
    const json event = json::parse(line.substr(6));
    const json::json_pointer where(text);
    if (event.contains(where) && event[where].is_string()) texts.push_back(event[where]);
  }
  return texts;
}

std::vector<std::string> StreamedByVllmInference(Servers& servers) {
  vllm::GenerateRequest request;
  for (const uint32_t id : IdsOf("dfh")) request.mutable_token_ids()->add_ids(id);
  request.mutable_stopping()->set_max_new_tokens(3);
  request.mutable_stopping()->set_ignore_eos(true);
  grpc::ClientContext context;
  auto reader = vllm::Inference::NewStub(servers.grpc)->GenerateStream(&context, request);
  std::vector<std::string> texts;
  vllm::GenerateResponse message;
  while (reader->Read(&message)) texts.push_back(message.outputs().text());
  EXPECT_TRUE(reader->Finish().ok());
  return texts;
}

class DialectsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake_.model->chat_template = testing::MakeChatTemplate("{{ messages[0].content }}");
    state_.SetReady(fake_.model);
    auto http =
        HttpServer::Listen("127.0.0.1", 0, &state_, &metrics_, [] { FAIL() << "listener lost"; });
    ASSERT_OK(http);
    http_ = *std::move(http);
    auto grpc = GrpcServer::Listen("127.0.0.1", 0, &state_, &metrics_, {});
    ASSERT_OK(grpc);
    grpc_ = *std::move(grpc);
    servers_ = std::make_unique<Servers>(
        Servers{httplib::Client("127.0.0.1", http_->port()),
                grpc::CreateChannel("127.0.0.1:" + std::to_string(grpc_->port()),
                                    grpc::InsecureChannelCredentials())});
  }
  void TearDown() override {
    fake_.engine->Drain(absl::Now());
    servers_.reset();
    http_->Shutdown(absl::Now() + absl::Seconds(10));
    grpc_->Shutdown(absl::Now() + absl::Seconds(10));
  }

  // Returns the requests that reach the engine when a protocol sends this.
  std::vector<InferenceRequest> Seen(const Protocol& protocol, const Ask& ask) {
    const size_t before = fake_.engine->seen().size();
    EXPECT_EQ(protocol.send(*servers_, ask), "") << protocol.name;
    std::vector<InferenceRequest> seen = fake_.engine->seen();
    seen.erase(seen.begin(), seen.begin() + static_cast<ptrdiff_t>(before));
    return seen;
  }
  void ExpectRefused(const Protocol& protocol, const Ask& ask, const std::string& error) {
    const size_t before = fake_.engine->seen().size();
    EXPECT_THAT(protocol.send(*servers_, ask), HasSubstr(error)) << protocol.name;
    EXPECT_EQ(fake_.engine->seen().size(), before) << protocol.name;
  }

  testing::FakeModel fake_ = testing::MakeFakeModel(/*with_tokenizer=*/true);
  ServingState state_{Clock::Real(), absl::Seconds(60)};
  ServerMetrics metrics_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<GrpcServer> grpc_;
  std::unique_ptr<Servers> servers_;
};

// The context holds 64 tokens. taopd.v1 promises max_new_tokens or an error (teacher.proto).
TEST_F(DialectsTest, MaxTokensIsCutToWhatTheContextLeaves) {
  for (const Protocol& protocol : kProtocols) {
    if (!protocol.cuts_max_tokens) {
      ExpectRefused(protocol, {.max_tokens = 62}, "exceeds max_model_len 64");
      continue;
    }
    for (const int64_t asked : {int64_t{62}, int64_t{100'000}, int64_t{4'000'000'000}}) {
      const auto seen = Seen(protocol, {.max_tokens = asked});
      ASSERT_EQ(seen.size(), 1u) << protocol.name;
      EXPECT_EQ(seen[0].sampling->max_new_tokens, 61) << protocol.name;
    }
    ExpectRefused(protocol, {.prompt = std::string(64, 'd')}, "max_tokens must be at least 1");
    ExpectRefused(protocol, {.prompt = std::string(65, 'd')},
                  "maximum context length is 64 tokens");
  }
}

TEST_F(DialectsTest, CacheSaltsHaveOneLimit) {
  const std::string longest(128, 's');
  for (const Protocol& protocol : kProtocols) {
    if (!protocol.has_salt) continue;
    const auto seen = Seen(protocol, {.cache_salt = longest});
    ASSERT_EQ(seen.size(), 1u) << protocol.name;
    EXPECT_EQ(seen[0].cache_salt, longest) << protocol.name;
    for (const std::string& salt : {longest + "s", std::string("a@b"), std::string("a/b"),
                                    std::string("a\\b"), std::string("a\0b", 3)}) {
      ExpectRefused(protocol, {.cache_salt = salt},
                    "Parameter 'cache_salt' must be at most 128 characters");
    }
  }
}

TEST_F(DialectsTest, ChoicesHaveOneLimit) {
  for (const Protocol& protocol : kProtocols) {
    if (!protocol.has_n) continue;
    EXPECT_EQ(Seen(protocol, {.max_tokens = 1, .n = 1025}).size(), 1025u) << protocol.name;
    const Ask greedy = {.n = 2, .temperature = 0.0f};
    if (protocol.has_greedy_choices) {
      EXPECT_EQ(Seen(protocol, greedy).size(), 2u) << protocol.name;
    } else {
      ExpectRefused(protocol, greedy, "n must be 1 when using greedy sampling, got 2");
    }
    ExpectRefused(protocol, {.n = 16'385}, "n must be at most 16384, got 16385");
  }
}

// Choice i has seed + i. -1 is no seed where the field has a sign, and other negative numbers are.
TEST_F(DialectsTest, SeedsMeanTheSame) {
  for (const Protocol& protocol : kProtocols) {
    const int64_t n = protocol.has_n ? 3 : 1;
    const std::optional<int64_t> asked_n = protocol.has_n ? std::optional(n) : std::nullopt;
    for (const int64_t seed : {int64_t{0}, int64_t{77}, int64_t{-2}}) {
      const auto seen = Seen(protocol, {.n = asked_n, .seed = seed});
      ASSERT_EQ(seen.size(), static_cast<size_t>(n)) << protocol.name;
      for (size_t i = 0; i < seen.size(); ++i) {
        EXPECT_EQ(seen[i].sampling->seed, static_cast<uint64_t>(seed) + i) << protocol.name;
        EXPECT_EQ(seen[i].num_choices, i == 0 ? n : 0) << protocol.name;
      }
    }
    const uint64_t first = Seen(protocol, {.seed = -1})[0].sampling->seed;
    const uint64_t second = Seen(protocol, {.seed = -1})[0].sampling->seed;
    EXPECT_EQ(first == second, !protocol.has_signed_seed) << protocol.name;
  }
}

TEST_F(DialectsTest, PromptsAreTruncatedWhereTheFieldExists) {
  for (const Protocol& protocol : kProtocols) {
    if (!protocol.has_truncation) continue;
    const auto seen = Seen(protocol, {.truncate = 2});
    ASSERT_EQ(seen.size(), 1u) << protocol.name;
    EXPECT_THAT(seen[0].token_ids, ElementsAre(5, 7)) << protocol.name;
    const auto whole = Seen(protocol, {.truncate = 4});
    EXPECT_THAT(whole.at(0).token_ids, ElementsAre(3, 5, 7)) << protocol.name;
  }
}

// The second of three tokens is a broken character: it waits for the third, which might have
// completed it.
TEST_F(DialectsTest, TextThatEndsInABrokenCharacterIsHeldBack) {
  InferenceRequest greedy;
  greedy.token_ids = {3, 5, 7};
  greedy.sampling.emplace();
  greedy.sampling->max_new_tokens = 3;
  greedy.sampling->ignore_eos = true;
  const std::vector<int32_t> ids = testing::FakeGenerate(greedy).ids;
  ASSERT_TRUE(ids[1] != ids[0] && ids[1] != ids[2]);
  fake_.model->tokenizer = std::make_unique<testing::BrokenTokenizer>(ids[1]);
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  const auto letter = [](int32_t id) { return std::string(1, static_cast<char>('a' + id)); };
  const std::string whole = letter(ids[0]) + std::string(kReplacement) + letter(ids[2]);

  const json fields = VllmFields({.max_tokens = 3});
  json completion = fields, chat = fields;
  completion["prompt"] = {3, 5, 7};
  chat["messages"] = {{{"role", "user"}, {"content", "dfh"}}};
  const json tokens = {
      {"token_ids", {3, 5, 7}}, {"sampling_params", fields}, {"output_mode", "text"}};
  const json sglang = {{"input_ids", {3, 5, 7}},
                       {"sampling_params", {{"max_new_tokens", 3}, {"ignore_eos", true}}}};
  const std::pair<const char*, std::vector<std::string>> streams[] = {
      {"completions", StreamedTexts(*servers_, "/v1/completions", completion, "/choices/0/text")},
      {"chat", StreamedTexts(*servers_, "/v1/chat/completions", chat, "/choices/0/delta/content")},
      {"tokens", StreamedTexts(*servers_, "/inference/v1/generate", tokens, "/choices/0/text")},
      {"vllm.Inference", StreamedByVllmInference(*servers_)},
  };
  for (const auto& [name, texts] : streams) {
    std::string joined;
    for (const std::string& text : texts) {
      EXPECT_FALSE(text.ends_with(kReplacement)) << name;
      joined += text;
    }
    EXPECT_EQ(joined, whole) << name;
  }
  // Each event of SGLang's holds everything so far.
  const auto so_far = StreamedTexts(*servers_, "/generate", sglang, "/text");
  ASSERT_FALSE(so_far.empty());
  for (const std::string& text : so_far) EXPECT_FALSE(text.ends_with(kReplacement));
  EXPECT_EQ(so_far.back(), whole);
}

}  // namespace
}  // namespace taopd
