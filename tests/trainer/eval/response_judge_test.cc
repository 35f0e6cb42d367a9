#include "trainer/eval/response_judge.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/reward/reward_server.h"
#include "trainer/eval/accuracy.h"

namespace taopd::testing {
namespace {

using ::testing::Contains;

// Answers problem p with the text of its answer.
class AnswerSource final : public ResponseSource {
 public:
  void Generate(const std::vector<EvalTask>& tasks, const EvalSampling&,
                std::function<void(size_t, absl::StatusOr<EvalResponse>)> done) override {
    for (size_t i = 0; i < tasks.size(); ++i) {
      const EvalResponse response = {.text = tasks[i].problem->answer,
                                     .truncated = tasks[i].problem_index == 3};
      done(i, response);
    }
  }
};

class ResponseJudgeTest : public ::testing::Test {
 protected:
  ResponseJudgeTest() {
    for (const char* reward : {"1", "0.5", "0.51", "1"}) {
      PromptRecord problem = {.id = Concat("f:", problems_.size())};
      problem.answer = reward;  // the server gives the response "N" the reward N
      problems_.push_back(problem);
    }
  }
  absl::StatusOr<EvalResult> Evaluate(const std::string& url, int64_t n = 1,
                                      const Tokenizer* tokenizer = nullptr) {
    const EvalConfig config = {.n = n, .grader = url};
    AccuracyRun run = {.config = &config, .problems = &problems_, .tokenizer = tokenizer};
    AnswerSource source;
    run.source = &source;
    return EvaluateAccuracy(run);
  }
  std::vector<PromptRecord> problems_;
};

TEST_F(ResponseJudgeTest, AResponseIsRightByItsReward) {
  RewardServer server;
  ASSERT_OK_AND_ASSIGN(const EvalResult result, Evaluate(server.Options().url));
  std::vector<bool> right;
  for (const EvalSample& sample : result.samples) right.push_back(sample.correct);
  EXPECT_EQ(right, (std::vector<bool>{true, false, true, false})) << "the last one is cut";
  EXPECT_EQ(server.num_requests, 4);
}

TEST_F(ResponseJudgeTest, WhatNeedsAnAnswerIsNotMeasured) {
  RewardServer server;
  const std::string url = server.Options().url;
  ASSERT_OK_AND_ASSIGN(const EvalResult result, Evaluate(url, 2));
  std::vector<std::string> names;
  for (const auto& [name, value] : result.metrics) names.push_back(name);
  EXPECT_THAT(names, Contains("eval/pass_at_2"));
  EXPECT_THAT(names, Not(Contains("eval/majority")));
  EXPECT_THAT(names, Not(Contains("eval/no_answer_share")));
  EXPECT_EQ(AccuracyMetricNames({.n = 2, .grader = url}, problems_), names);
  EXPECT_TRUE(std::isnan(result.accuracy.sources[0].majority));
}

TEST_F(ResponseJudgeTest, ThePromptIsNeverEmpty) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Tokenizer> tokenizer,
                       Tokenizer::Load(SourcePath("tests/common/text/data/qwen2_toy")));
  problems_.resize(2);
  problems_[0].messages = {{{"content", "hi"}}};
  problems_[1].prompt_ids = tokenizer->Encode("hello");
  RewardServer server([](const nlohmann::json& request, httplib::Response& response) {
    const nlohmann::json& sample = request.at("samples").at(0);
    const bool is_chat = sample.at("id") == "problem-0-0";
    EXPECT_EQ(sample.at("prompt"), is_chat ? R"([{"content":"hi"}])" : "hello");
    RewardServer::Right(request, response);
  });
  EXPECT_OK(Evaluate(server.Options().url, 1, tokenizer.get()));
}

TEST_F(ResponseJudgeTest, AServerThatRefusesEndsTheEvaluation) {
  RewardServer server(
      [](const nlohmann::json&, httplib::Response& response) { response.status = 403; });
  EXPECT_ERROR(Evaluate(server.Options().url), kFailedPrecondition,
               "eval.grader: http://127.0.0.1:");
  EXPECT_ERROR(Evaluate("ftp://a"), kInvalidArgument, "eval.grader = ftp://a: must begin with");
}

}  // namespace
}  // namespace taopd::testing
