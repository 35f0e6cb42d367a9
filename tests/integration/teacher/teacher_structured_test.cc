// Tests of structured output over sockets, on a model with 100,000 ids: no request can delay the
// server or other clients.
#include <atomic>
#include <thread>

#include "tests/integration/model_configs.h"
#include "tests/integration/teacher/teacher_binary_fixture.h"

namespace taopd::testing {
namespace {

using nlohmann::json;

constexpr int64_t kVocab = 100'000;

// Writes a tokenizer with the end-of-sequence id 0, the bytes as ids 1 to 256, and words.
void WriteTokenizer(const std::string& dir) {
  json vocab = {{"<|end|>", 0}};
  int32_t next = 1, shifted = 256;
  for (int byte = 0; byte < 256; ++byte) {  // bytes in GPT-2's notation
    const bool is_shown = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    const int point = is_shown ? byte : shifted++;
    std::string text;
    if (point < 0x80) {
      text = std::string(1, static_cast<char>(point));
    } else {
      text = {static_cast<char>(0xC0 | point >> 6), static_cast<char>(0x80 | (point & 0x3F))};
    }
    vocab[text] = next++;
  }
  for (; next < kVocab; ++next) vocab["w" + std::to_string(next)] = next;
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}};
  const json end = {
      {"id", 0},         {"content", "<|end|>"}, {"special", true},    {"lstrip", false},
      {"rstrip", false}, {"single_word", false}, {"normalized", false}};
  const json file = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", {end}},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", byte_level},
                     {"post_processor", nullptr},
                     {"decoder", byte_level},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", ""},
                       {"end_of_word_suffix", ""},
                       {"fuse_unk", false},
                       {"vocab", vocab},
                       {"merges", json::array()}}}};
  WriteFile(dir + "/tokenizer.json", file.dump());
}

class TeacherStructuredTest : public TeacherBinaryFixture {
 protected:
  // Serves a Llama of one layer with random weights.
  void SetUp() override {
    WriteTokenizer(dir_.path());
    Json config = BaseConfig("LlamaForCausalLM", "llama", kVocab);
    config.update({{"num_hidden_layers", 1},
                   {"max_position_embeddings", 4096},
                   {"eos_token_id", 0},
                   {"bos_token_id", 0}});
    Start({"--served-model-name", "m"}, MakeRandomModel(dir_.File("m"), config, dir_.path()));
  }
  // Expects an answer with this status, and returns its body.
  std::string Ask(const json& body, int status = 200) {
    return BodyOf(NewClient()->Post("/v1/completions", body.dump(), "application/json"), status);
  }
  static json Plain(int max_tokens) {
    return {{"prompt", {5, 6}}, {"max_tokens", max_tokens}, {"ignore_eos", true}};
  }
  static json Formed(const std::string& regex) {
    return {{"prompt", {5, 6}}, {"max_tokens", 40}, {"structured_outputs", {{"regex", regex}}}};
  }

  TempDir dir_;
};

// The stop ids of all choices exceed every buffer between the server and its grammar process.
TEST_F(TeacherStructuredTest, ManyStopIdsOfManyChoicesHoldNobodyUp) {
  json body = Formed("[a-z]{1,30}");
  body["n"] = 100;
  for (int i = 0; i < 27'500; ++i) body["stop_token_ids"].push_back(300 + i);
  std::vector<std::thread> senders;
  std::atomic<int> num_refused{0};
  for (int i = 0; i < 4; ++i) {
    senders.emplace_back([&] {
      EXPECT_THAT(Ask(body, 400), HasSubstr("stop_token_ids has 27500 ids, at most 1024"));
      ++num_refused;
    });
  }
  for (int i = 0; i < 5; ++i) {
    Ask(Plain(3));
    BodyOf(NewClient()->Get("/health"));
  }
  for (std::thread& sender : senders) sender.join();
  EXPECT_EQ(num_refused, 4);
  EXPECT_TRUE(Children().empty());  // the request never reached it
  // A request with the maximum number is answered.
  body["stop_token_ids"].get_ref<json::array_t&>().resize(1024);
  Ask(body);
  EXPECT_EQ(teacher_->Terminate(), 0);
}

// A request that the engine would refuse is refused before a grammar is compiled.
TEST_F(TeacherStructuredTest, ARequestIsCheckedBeforeItsFormIs) {
  for (const auto& [name, value] : std::vector<std::pair<std::string, json>>{
           {"min_tokens", 1000}, {"temperature", -1.0}, {"top_p", 0.0}, {"stop_token_ids", {-1}}}) {
    json body = Formed("a");
    body[name] = value;
    EXPECT_THAT(Ask(body, 400), HasSubstr(name));
  }
  EXPECT_TRUE(Children().empty());
}

TEST_F(TeacherStructuredTest, AKilledGrammarProcessRefusesNobody) {
  const auto is_answered = [&] {
    for (const char* regex : {"[ab]{3,20}", "[cd]{3,20}"}) Ask(Formed(regex));
  };
  is_answered();
  if (Children().empty()) GTEST_SKIP() << "this system does not list children";
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(::kill(Children().at(0), SIGKILL), 0);
    is_answered();
  }
  // Texts of several forms are being generated, and they continue. TAOPD_FORMED_TOKENS (the ctest
  // entry with the label slow sets 2000) is the length of the longest.
  const int64_t num_tokens = NumberFromEnvironment("TAOPD_FORMED_TOKENS", 200);
  json longer = Formed("[a-z]*");
  longer["min_tokens"] = longer["max_tokens"] = num_tokens;
  std::atomic<bool> done{false};
  std::thread call([&] {
    EXPECT_THAT(Ask(longer), HasSubstr(Concat("\"completion_tokens\":", num_tokens, ",")));
    done = true;
  });
  int num_kills = 0;
  while (!done) {
    is_answered();
    const std::vector<pid_t> processes = Children();
    if (processes.empty() || done) continue;
    ::kill(processes[0], SIGKILL);
    ++num_kills;
  }
  call.join();
  EXPECT_GT(num_kills, 0);
  is_answered();
  EXPECT_EQ(teacher_->Terminate(), 0);
}

// The masks take longer with every token. The text ends when they have used up its time, and
// another client's text gets many tokens for each of its tokens.
TEST_F(TeacherStructuredTest, SlowMasksSlowNobodyElse) {
  json hostile = {{"prompt", {5, 6}},
                  {"max_tokens", 4000},
                  {"min_tokens", 4000},
                  {"structured_outputs", {{"grammar", "root ::= s\ns ::= s s | \"a\""}}}};
  std::atomic<bool> done{false};
  int num_hostile = 0;
  std::thread call([&] {
    const std::string answer = Ask(hostile, 400);
    done = true;
    const std::string before = "it takes too long to match: the masks of ";
    const size_t at = answer.find(before);
    EXPECT_NE(at, std::string::npos) << answer;
    if (at != std::string::npos) num_hostile = std::stoi(answer.substr(at + before.size()));
  });
  int num_plain = 0;
  for (; !done; num_plain += 20) Ask(Plain(20));
  call.join();
  EXPECT_GT(num_hostile, 0);
  // If each step waited for the slow mask, both would get equally many tokens.
  EXPECT_GT(num_plain, 4 * num_hostile);
  RecordProperty("plain_tokens", num_plain);
  RecordProperty("hostile_tokens", num_hostile);
  Ask(Formed("[ab]{3,20}"));
  EXPECT_EQ(teacher_->Terminate(), 0);
}

}  // namespace
}  // namespace taopd::testing
