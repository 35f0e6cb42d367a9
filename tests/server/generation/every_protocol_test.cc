// The rules that every protocol that generates has in common, over sockets: each case goes through
// each protocol, and the engine must be asked for the same, or the same limit must refuse it.
#include <gmock/gmock.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "server/http/http_server.h"
#include "server/structured/grammar_compiler.h"
#include "tests/server/generation/every_protocol.h"
#include "tests/server/grpc/grpc_server_fixture.h"
#include "tests/server/http/protocol_fixture.h"
#include "tests/support/files.h"

namespace taopd::testing {
namespace {

using nlohmann::json;

// Token v is the letter v; token 0 ends a text.
constexpr char kLetters[] = "$123456789abcdefghijklmnopqr\"{}:";
static_assert(sizeof(kLetters) == kFakeVocab + 1);

std::unique_ptr<GrammarCompiler> LettersCompiler() {
  std::vector<std::string> token_bytes(kFakeVocab);
  for (int v = 1; v < kFakeVocab; ++v) token_bytes[v] = std::string(1, kLetters[v]);
  GrammarCompilerOptions options;
  options.host.program = BinaryPath("taopd-grammar");
  return std::make_unique<GrammarCompiler>(token_bytes, std::vector<int32_t>{0}, options);
}

// The letters that may follow `text`, in the order of kLetters; "$" stands for its end.
absl::StatusOr<std::string> LettersBehind(const std::string& text, LogitMask& mask) {
  std::vector<int32_t> ids;
  for (const char letter : text)
    ids.push_back(static_cast<int32_t>(std::string(kLetters).find(letter)));
  std::vector<uint64_t> bits = {~uint64_t{0}};
  TAOPD_ASSIGN_OR_RETURN(const bool restricts, mask.Mask(ids, bits));
  if (!restricts) return std::string(kLetters);
  std::string letters;
  for (int v = 0; v < kFakeVocab; ++v) {
    if ((bits[0] >> v & 1) != 0) letters += kLetters[v];
  }
  return letters;
}

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
  const auto request = FromJson<vllm::GenerateRequest>(
      {{"token_ids", {{"ids", IdsOf("dfh")}}},
       {"stopping", {{"max_new_tokens", 3}, {"ignore_eos", true}}}});
  grpc::ClientContext context;
  const auto stub = vllm::Inference::NewStub(servers.grpc);
  const auto messages = ReadAll(stub->GenerateStream(&context, request));
  EXPECT_OK(messages);
  std::vector<std::string> texts;
  if (!messages.ok()) return texts;
  for (const auto& message : *messages) texts.push_back(message.outputs().text());
  return texts;
}

class EveryProtocolTest : public GrpcServerFixture {
 protected:
  void SetUp() override {
    GrpcServerFixture::SetUp();
    fake_.model->chat_template = MakeChatTemplate("{{ messages[0].content }}");
    Ready();
    ASSERT_OK_AND_ASSIGN(http_, HttpServer::Listen("127.0.0.1", 0, &state_, &metrics_,
                                                   [] { FAIL() << "listener lost"; }));
    servers_ =
        std::make_unique<Servers>(Servers{httplib::Client("127.0.0.1", http_->port()), channel_});
  }
  void TearDown() override {
    fake_.engine->Drain(absl::Now());
    servers_.reset();
    http_->Shutdown(absl::Now() + absl::Seconds(10));
    GrpcServerFixture::TearDown();
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

  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<Servers> servers_;
};

// The context holds 64 tokens. taopd.v1 promises max_new_tokens or an error (teacher.proto).
TEST_F(EveryProtocolTest, MaxTokensIsCutToWhatTheContextLeaves) {
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

TEST_F(EveryProtocolTest, EveryFieldReachesTheEngine) {
  fake_.model->sampling_defaults.top_p = 0.75f;
  for (const Protocol& protocol : kProtocols) {
    SCOPED_TRACE(protocol.name);
    const auto seen = Seen(protocol, {.every_field = true});
    ASSERT_EQ(seen.size(), 1u);
    EXPECT_EQ(seen[0].client, "127.0.0.1");
    EXPECT_THAT(seen[0].token_ids, ElementsAre(3, 5, 7));
    const SamplingParams& sampling = *seen[0].sampling;
    EXPECT_EQ(sampling.max_new_tokens, 2);
    EXPECT_EQ(sampling.temperature, 0.5f);
    EXPECT_EQ(sampling.top_p, protocol.has_model_defaults ? 0.75f : 1.0f);
    EXPECT_EQ(sampling.top_k, 7);
    EXPECT_EQ(sampling.min_p, 0.125f);
    EXPECT_EQ(sampling.repetition_penalty, 1.5f);
    EXPECT_EQ(sampling.presence_penalty, -1.0f);
    EXPECT_EQ(sampling.frequency_penalty, 0.25f);
    EXPECT_THAT(sampling.logit_bias.entries(), ElementsAre(Pair(4, -3.0f)));
    if (protocol.has_allowed_ids) {
      EXPECT_THAT(*sampling.allowed_token_ids, ElementsAre(9));
    }
    EXPECT_EQ(sampling.min_tokens, 1);
    EXPECT_THAT(sampling.stop_token_ids, ElementsAre(30));
    EXPECT_TRUE(sampling.ignore_eos);
  }
}

// Each form becomes a mask of every choice, which follows the text to its end.
TEST_F(EveryProtocolTest, FormsBecomeMasks) {
  fake_.model->grammar_compiler = LettersCompiler();
  const Form forms[] = {
      {"regex", "[ab]c+", "ac", {"ab", "c", "$c"}},
      {"choice", {"cd", "e"}, "cd", {"ce", "d", "$"}},
      {"grammar", "root ::= \"d\" | \"ef\"", "ef", {"de", "f", "$"}},
      {"json", {{"enum", {12, 13, 2}}}, "13", {"12", "23", "$"}},
      {"json_object", true, "{}", {"{", "\"}", "$"}},
      {"structural_tag",
       R"({"type":"structural_tag","format":{"type":"const_string","value":"f1"}})",
       "f1",
       {"f", "1", "$"}},
  };
  for (const Protocol& protocol : kProtocols) {
    if (!protocol.has_forms) continue;
    SCOPED_TRACE(protocol.name);
    const std::optional<int64_t> n = protocol.has_n ? std::optional(2) : std::nullopt;
    for (const Form& form : forms) {
      const bool is_sglangs = form.kind != "choice" && form.kind != "json_object";
      if (protocol.send == Sglang && !is_sglangs) continue;
      SCOPED_TRACE(form.kind);
      const auto seen = Seen(protocol, {.n = n, .form = form});
      ASSERT_EQ(seen.size(), protocol.has_n ? 2u : 1u);
      const auto mask = seen.back().sampling->mask;
      ASSERT_NE(mask, nullptr);
      if (protocol.has_n) {
        EXPECT_NE(mask, seen[0].sampling->mask);  // each follows its own text
      }
      for (size_t length = 0; length < form.letters.size(); ++length) {
        ASSERT_OK_AND_ASSIGN(const std::string letters,
                             LettersBehind(form.text.substr(0, length), *mask));
        EXPECT_EQ(letters, form.letters[length]) << length;
      }
    }
    ExpectRefused(protocol, {.form = Form{"regex", "(a"}}, "Regex parsing error");
    for (const char* kind : {"json", "structural_tag"})
      ExpectRefused(protocol, {.form = Form{kind, "{"}}, "is not valid JSON");
  }
}

TEST_F(EveryProtocolTest, CacheSaltsHaveOneLimit) {
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

TEST_F(EveryProtocolTest, ChoicesHaveOneLimit) {
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
TEST_F(EveryProtocolTest, SeedsMeanTheSame) {
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

TEST_F(EveryProtocolTest, PromptsAreTruncatedWhereTheFieldExists) {
  for (const Protocol& protocol : kProtocols) {
    if (!protocol.has_truncation) continue;
    const auto seen = Seen(protocol, {.truncate = 2});
    ASSERT_EQ(seen.size(), 1u) << protocol.name;
    EXPECT_THAT(seen[0].token_ids, ElementsAre(5, 7)) << protocol.name;
    const auto whole = Seen(protocol, {.truncate = 4});
    EXPECT_THAT(whole.at(0).token_ids, ElementsAre(3, 5, 7)) << protocol.name;
  }
}

TEST_F(EveryProtocolTest, AnEngineErrorEndsTheRequest) {
  fake_.engine->FailWith(Internal("the logits are not finite"));
  for (const Protocol& protocol : kProtocols)
    EXPECT_EQ(protocol.send(*servers_, {}), "the logits are not finite") << protocol.name;
}

// The second of three tokens is a broken character: it waits for the third, which might have
// completed it.
TEST_F(EveryProtocolTest, TextThatEndsInABrokenCharacterIsHeldBack) {
  const std::vector<int32_t> ids = FakeGenerate(MakeGeneration({3, 5, 7}, 3)).ids;
  ASSERT_TRUE(ids[1] != ids[0] && ids[1] != ids[2]);
  fake_.model->tokenizer = std::make_unique<BrokenTokenizer>(ids[1]);
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
}  // namespace taopd::testing
