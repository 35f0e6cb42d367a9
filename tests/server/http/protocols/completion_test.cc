// Completions without sockets: what the engine is asked, and what becomes of its results.
#include "server/http/protocols/protocols.h"

#include <nlohmann/json.hpp>
#include <set>

#include "tests/server/http/protocol_fixture.h"

namespace taopd::testing {
namespace {

using nlohmann::json;

class CompletionTest : public ProtocolTest {
 protected:
  json Complete(const json& body) { return Ask(RunCompletion, body); }
  std::vector<uint64_t> Seeds() const {
    std::vector<uint64_t> seeds;
    for (const InferenceRequest& request : fake_.engine->seen())
      seeds.push_back(request.sampling->seed);
    return seeds;
  }
};

TEST_F(CompletionTest, SeedsOfChoicesFollowTheRequests) {
  const json answer = Complete({{"prompt", {{1}, {1}}}, {"n", 3}, {"seed", 7}});
  EXPECT_EQ(answer["choices"].size(), 6u);
  EXPECT_EQ(Seeds(), (std::vector<uint64_t>{7, 8, 9, 7, 8, 9}));  // alike for each prompt
}

TEST_F(CompletionTest, WithoutASeedEqualPromptsHaveDifferentSeeds) {
  for (int repeat = 0; repeat < 2; ++repeat) {
    Complete({{"prompt", {{1}, {1}}}, {"n", 2}, {"request_id", "same"}});
  }
  const std::vector<uint64_t> seeds = Seeds();
  EXPECT_EQ(std::set<uint64_t>(seeds.begin(), seeds.end()).size(), 8u);
}

TEST_F(CompletionTest, PromptsAreScoredOnceForAllChoices) {
  const json answer = Complete({{"prompt", {1, 2, 3}}, {"n", 2}, {"prompt_logprobs", 1}});
  const std::vector<InferenceRequest> seen = fake_.engine->seen();
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_TRUE(seen[0].score.has_value());
  EXPECT_FALSE(seen[1].score.has_value());
  EXPECT_EQ(answer["choices"][1]["prompt_logprobs"], answer["choices"][0]["prompt_logprobs"]);
}

TEST_F(CompletionTest, OnlyWhatIsReportedIsComputed) {
  Complete({{"prompt", {1}}});
  Complete({{"prompt", {1}}, {"logprobs", 2}, {"temperature", 0.5}});
  const std::vector<InferenceRequest> seen = fake_.engine->seen();
  ASSERT_EQ(seen.size(), 2u);  // nothing is scored again
  EXPECT_FALSE(seen[0].sampling->log_probs || seen[0].sampling->raw_log_probs);
  EXPECT_EQ(seen[0].sampling->num_log_probs, 0);
  EXPECT_TRUE(seen[1].sampling->raw_log_probs);
  EXPECT_EQ(seen[1].sampling->num_log_probs, 2);
  EXPECT_EQ(seen[1].sampling->top_log_probs_mode, LogProbsMode::kRaw);
}

TEST_F(CompletionTest, StopStringsEndTheSequenceInTheEngine) {
  const json body = {
      {"prompt", {3}}, {"max_tokens", 12}, {"ignore_eos", true}, {"return_token_ids", true}};
  const json whole = Complete(body)["choices"][0];
  const std::string text = whole["text"];
  ASSERT_EQ(text.size(), 12u);
  const std::string stop = text.substr(4, 3);
  const size_t begin = text.find(stop);
  json stopping = body;
  stopping["stop"] = {"no such text", stop};
  json choice = Complete(stopping)["choices"][0];
  EXPECT_EQ(choice["text"], text.substr(0, begin));
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], stop);
  EXPECT_EQ(choice["token_ids"].size(), begin + stop.size());  // no more are generated
  stopping["include_stop_str_in_output"] = true;
  EXPECT_EQ(Complete(stopping)["choices"][0]["text"], text.substr(0, begin + stop.size()));
  stopping["min_tokens"] = 12;
  choice = Complete(stopping)["choices"][0];
  EXPECT_EQ(choice["text"], text);
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["stop_reason"], nullptr);
}

TEST_F(CompletionTest, CopiesForManyChoicesAreLimited) {
  json words = json::array(), stop = json::array();
  for (int i = 0; i < 1000; ++i) {
    const auto letter = [](int v) { return static_cast<char>('a' + v % 26); };
    words.push_back(std::string({letter(i), letter(i / 26), letter(i / 676)}));
  }
  for (int i = 0; i < 64; ++i) stop.push_back(std::string(1000, static_cast<char>('0' + i)));
  json body = {{"prompt", {1}}, {"n", 6000}, {"max_tokens", 1}, {"bad_words", words}};
  EXPECT_THAT(Refused(RunCompletion, body).message, HasSubstr("the sampling fields and the"));
  body = {{"prompt", {1}}, {"n", 4000}, {"max_tokens", 1}, {"stop", stop}};
  EXPECT_THAT(Refused(RunCompletion, body).message, HasSubstr("the stop strings of all choices"));
}

}  // namespace
}  // namespace taopd::testing
