// Exact texts for results made by hand.
#include "server/http/protocols/protocols.h"

#include <nlohmann/json.hpp>

#include "server/http/response/answer_json.h"
#include "server/http/response/token_text.h"
#include "tests/server/fake_engine.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

CompletionRequest MakeRequest() {
  CompletionRequest request;
  request.request_id = "id";
  request.model = "fake";
  request.prompts.push_back({{0, 1, 2}, std::nullopt});
  request.max_tokens = 1;
  request.created_unix_s = 1755000000;
  return request;
}

// Row 0 (position 1): the actual token 1 is not in the top 2. Row 1 (position 2): token 2 is
// second.
InferenceResult MakeResult(int32_t k) {
  ScoreRows rows = {.num_rows = 2,
                    .top_k = k,
                    .log_tail = {-1, -1},
                    .sampled_log_probs = {-3.5f, -0.75f},
                    .sampled_ranks = {9, 2}};
  if (k == 2) {
    rows.ids = {5, 6, 7, 2};
    rows.log_probs = {-0.5f, -1.25f, -0.1f, -0.75f};
  }
  GeneratedTokens generated = {.ids = {3}, .raw_log_probs = {-0.25f}};
  return {std::move(rows), std::move(generated)};
}

class CompletionResponseTest : public ::testing::Test {
 protected:
  std::string Render(const InferenceResult& result, bool with_tokenizer = false) {
    const auto json =
        CompletionResponseJson(request_, *MakeFakeModel(with_tokenizer).model, {result});
    EXPECT_OK(json);
    return json.value_or("");
  }
  CompletionRequest request_ = MakeRequest();
};

TEST_F(CompletionResponseTest, WholeAnswerInVllmsKeyOrder) {
  request_.prompt_logprobs = 2;
  EXPECT_EQ(Render(MakeResult(2)),
            R"({"id":"cmpl-id","object":"text_completion","created":1755000000,"model":"fake",)"
            R"("choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"length",)"
            R"("stop_reason":null,"token_ids":null,"prompt_logprobs":[null,{"1":{"logprob":-3.5,)"
            R"("rank":9,"decoded_token":null},"5":{"logprob":-0.5,"rank":1,)"
            R"("decoded_token":null},"6":{"logprob":-1.25,"rank":2,"decoded_token":null}},)"
            R"({"2":{"logprob":-0.75,"rank":2,"decoded_token":null},)"
            R"("7":{"logprob":-0.10000000149011612,"rank":1,"decoded_token":null}}],)"
            R"("prompt_token_ids":null,"routed_experts":null}],"service_tier":null,)"
            R"("system_fingerprint":"taopd-)" TAOPD_VERSION
            R"(-0123456789abcdef","usage":{"prompt_tokens":3,"total_tokens":4,)"
            R"("completion_tokens":1,"prompt_tokens_details":null,)"
            R"("completion_tokens_details":null},"kv_transfer_params":null,)"
            R"("ec_transfer_params":null,"metrics":null})");
}

TEST_F(CompletionResponseTest, ZeroPromptLogprobsGivesTheActualToken) {
  request_.prompt_logprobs = 0;
  EXPECT_THAT(
      Render(MakeResult(0)),
      HasSubstr(R"("prompt_logprobs":[null,{"1":{"logprob":-3.5,"rank":9,"decoded_token":null}},)"
                R"({"2":{"logprob":-0.75,"rank":2,"decoded_token":null}}])"));
}

TEST_F(CompletionResponseTest, MinusInfinityIsMinus9999AndNanIsAnError) {
  request_.prompt_logprobs = 0;
  InferenceResult result = MakeResult(0);
  result.score->sampled_log_probs[0] = -kInf;
  EXPECT_THAT(Render(result), HasSubstr(R"("logprob":-9999.0,)"));
  for (float bad : {std::nanf(""), kInf}) {
    result.score->sampled_log_probs[0] = bad;
    EXPECT_ERROR(CompletionResponseJson(request_, *MakeFakeModel().model, {result}), kInternal,
                 "token 1 at position 1");
  }
}

TEST_F(CompletionResponseTest, EchoedLogprobsCoverPromptAndGeneratedTokens) {
  request_.echo = true;
  request_.logprobs = 2;
  request_.prompt_logprobs = 2;
  InferenceResult result = MakeResult(2);
  result.generated->top_ids = {3, 9};
  result.generated->top_log_probs = {-0.25f, -2.0f};
  const std::string json = Render(result, /*with_tokenizer=*/true);
  EXPECT_THAT(json, HasSubstr(R"("text":"abcd")"));
  EXPECT_THAT(
      json,
      HasSubstr(R"("logprobs":{"text_offset":[0,1,2,3],"token_logprobs":[null,-3.5,-0.75,-0.25],)"
                R"("tokens":["a","b","c","d"],"top_logprobs":[null,{"b":-3.5,"f":-0.5,"g":-1.25},)"
                R"({"c":-0.75,"h":-0.10000000149011612},{"d":-0.25,"j":-2.0}]})"));
  EXPECT_THAT(json, HasSubstr(R"("decoded_token":"b")"));
}

TEST_F(CompletionResponseTest, LogprobsZeroReportsOnlyTheChosenToken) {
  request_.logprobs = 0;
  EXPECT_THAT(
      Render(MakeResult(0)),
      HasSubstr(R"("logprobs":{"text_offset":[0],"token_logprobs":[-0.25],"tokens":["token_id:3"],)"
                R"("top_logprobs":[{"token_id:3":-0.25}]})"));
}

TEST_F(CompletionResponseTest, EchoedLogprobsAreCutToTheirOwnCount) {
  request_.echo = true;
  request_.logprobs = 0;
  request_.prompt_logprobs = 2;  // asks for more than logprobs does
  EXPECT_THAT(Render(MakeResult(2)),
              HasSubstr(R"("top_logprobs":[null,{"token_id:1":-3.5},{"token_id:2":-0.75},)"
                        R"({"token_id:3":-0.25}])"));
}

TEST_F(CompletionResponseTest, MaxTokensZeroHidesTheGeneratedToken) {
  request_.echo = true;
  request_.max_tokens = 0;
  request_.logprobs = 0;
  request_.prompt_logprobs = 0;
  request_.return_token_ids = true;
  InferenceResult result = MakeResult(0);
  result.generated->finish = FinishReason::kStop;
  const auto json = nlohmann::json::parse(Render(result, true));
  const auto& choice = json["choices"][0];
  EXPECT_EQ(choice["text"], "");  // return_token_ids drops the echoed text
  EXPECT_EQ(choice["logprobs"]["tokens"].size(), 3u);
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["token_ids"], nlohmann::json({3}));
  EXPECT_EQ(choice["prompt_token_ids"], nlohmann::json({0, 1, 2}));
  EXPECT_EQ(json["usage"]["completion_tokens"], 1);
}

TEST_F(CompletionResponseTest, StopReasonIsTheAskedIdOnly) {
  InferenceResult result = MakeResult(0);
  result.generated->ids = {4, 3};
  result.generated->finish = FinishReason::kStop;
  EXPECT_THAT(Render(result, true),
              HasSubstr(R"("text":"e","logprobs":null,"finish_reason":"stop","stop_reason":null)"));
  request_.sampling.stop_token_ids = {3};
  EXPECT_THAT(Render(result), HasSubstr(R"("finish_reason":"stop","stop_reason":3)"));
}

TEST_F(CompletionResponseTest, StopStringsCutTheTextOverTokenBorders) {
  request_.stop = {"zz", "fg"};
  InferenceResult result = MakeResult(0);
  result.generated->ids = {4, 5, 6};  // "e", "f", "g"
  result.generated->finish = FinishReason::kStop;
  EXPECT_THAT(Render(result, true),
              HasSubstr(R"("text":"e","logprobs":null,"finish_reason":"stop","stop_reason":"fg")"));
  request_.include_stop_str_in_output = true;
  EXPECT_THAT(Render(result, true), HasSubstr(R"("text":"efg")"));
  // A stop token, whose text is a part of the output now, too.
  request_.stop = {"zz"};
  request_.sampling.stop_token_ids = {6};
  EXPECT_THAT(Render(result, true),
              HasSubstr(R"("text":"efg","logprobs":null,"finish_reason":"stop","stop_reason":6)"));
  // vLLM drops the stop token before it looks for stop strings.
  request_.stop = {"fg"};
  request_.include_stop_str_in_output = false;
  EXPECT_THAT(Render(result, true),
              HasSubstr(R"("text":"ef","logprobs":null,"finish_reason":"stop","stop_reason":6)"));
}

TEST_F(CompletionResponseTest, TokensAfterAStopStringHaveNoText) {
  request_.stop = {"e"};
  InferenceResult result = MakeResult(0);
  result.generated->ids = {5, 4, 6, 4};
  EXPECT_THAT(Render(result, true), HasSubstr(R"("text":"f","logprobs":null)"));
}

TEST_F(CompletionResponseTest, ChoicesOfAPromptShareItsLogprobs) {
  request_.n = 2;
  request_.prompts.push_back({{7}, std::nullopt});
  request_.prompt_logprobs = 0;
  InferenceResult unscored = MakeResult(0);
  unscored.score.reset();
  const auto text = CompletionResponseJson(request_, *MakeFakeModel().model,
                                           {MakeResult(0), unscored, unscored, unscored});
  ASSERT_OK(text);
  const auto json = nlohmann::json::parse(*text);
  ASSERT_EQ(json["choices"].size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(json["choices"][i]["index"], i);
    EXPECT_EQ(json["choices"][i]["prompt_logprobs"].size(), i < 2 ? 3u : 1u);
  }
  EXPECT_EQ(json["choices"][1]["prompt_logprobs"], json["choices"][0]["prompt_logprobs"]);
  EXPECT_TRUE(json["choices"][2]["prompt_logprobs"][0].is_null());
  EXPECT_EQ(json["usage"]["prompt_tokens"], 4);  // each prompt once
  EXPECT_EQ(json["usage"]["completion_tokens"], 4);
}

TEST_F(CompletionResponseTest, EqualTokenTextsMerge) {
  request_.logprobs = 2;
  InferenceResult result = MakeResult(0);
  result.generated->top_ids = {30, 31};  // both incomplete characters: empty text
  result.generated->top_log_probs = {-1.0f, -2.0f};
  EXPECT_THAT(Render(result, true), HasSubstr(R"("top_logprobs":[{"d":-0.25,"":-2.0}])"));
}

TEST(TokenTextTest, CompletesACharacterFromItsContext) {
  FakeTokenizer tokenizer;
  TokenText tokens(&tokenizer, false);
  const std::vector<int32_t> context = {1, 30};
  EXPECT_EQ(tokens.Decode(31, context), "\xC3\xA9");
  EXPECT_EQ(tokens.Decode(31, {}), "");
  EXPECT_EQ(tokens.Decode(2, context), "c");
  TokenText ids(&tokenizer, true);
  EXPECT_EQ(ids.Name(2, context), "token_id:2");
}

TEST(TokenTextTest, NumbersReadBackAsTheSameFloat) {
  for (float value : {-0.0f, -1e-8f, -1.0f, -0.12345679f, -87.5f, -1e20f, -3.4028235e38f}) {
    std::string text;
    AppendLogprob(value, &text);
    EXPECT_EQ(nlohmann::json::parse(text).get<float>(), value) << text;
    EXPECT_TRUE(nlohmann::json::parse(text).is_number_float()) << text;
  }
}

TEST(EstimateTest, BoundsTheAnswer) {
  CompletionRequest request = MakeRequest();
  request.n = 40;
  request.prompt_logprobs = 2;
  request.logprobs = 2;
  request.echo = true;
  InferenceResult result = MakeResult(2);
  result.generated->top_ids = {3, 9};
  result.generated->top_log_probs = {-0.25f, -2.0f};
  const auto json = CompletionResponseJson(request, *MakeFakeModel(true).model,
                                           std::vector<InferenceResult>(40, result));
  ASSERT_OK(json);
  EXPECT_GE(EstimateAnswerBytes(request, request.echo), static_cast<int64_t>(json->size()));
}

}  // namespace
}  // namespace taopd::testing
