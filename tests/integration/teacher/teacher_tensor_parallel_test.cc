// Tests of the real taopd-teacher split over several processes: it gives the answers of one
// process, and it does not outlive any of its ranks.
#include <signal.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/integration/teacher/teacher_binary_fixture.h"

namespace taopd::testing {
namespace {

using nlohmann::json;

// The processes split the float32 sums differently, over up to 200 positions. Probabilities agree
// within 1e-5. A log-prob has the rounding error of logits of up to 30, whose spacing in float32 is
// 2e-6. On this model one process differs from float64 by up to 1.5e-5, PyTorch in float32 by
// 1.2e-5, and two processes by 1.9e-5. So no order of the sums makes one and two processes agree
// within 1e-5; the largest difference seen is 1.7e-5.
constexpr double kProbabilityTolerance = 1e-5;
constexpr double kLogProbTolerance = 3e-5;
constexpr absl::Duration kEnd = absl::Seconds(60);

void ExpectSameLogProb(double actual, double expected) {
  EXPECT_NEAR(std::exp(actual), std::exp(expected), kProbabilityTolerance);
  EXPECT_NEAR(actual, expected, kLogProbTolerance);
}

class TeacherTensorParallelTest : public TeacherBinaryFixture {
 protected:
  v1::ScoreResponse ScoreOf(const v1::ScoreRequest& request) {
    const auto response = Score(request);
    EXPECT_OK(response);
    return response.value_or(v1::ScoreResponse());
  }
};

std::vector<v1::ScoreRequest> Requests() {
  std::vector<v1::ScoreRequest> requests(3, MakeRequest(LoadGolden().ids, 1, 16));
  requests[1].mutable_options()->set_rank(true);
  requests[1].mutable_options()->set_entropy(true);
  requests[2].set_top_k(300);  // more ids than a rank has
  return requests;
}

// Returns two prompts with a common beginning, which the second finds in the cache. Their texts end
// soon, because every token waits for all processes, but in another block of the cache.
std::vector<json> Prompts() {
  json prompt = json::array();
  for (int i = 0; i < 60; ++i) prompt.push_back(i * 7 % 500 + 3);
  json longer = prompt;
  longer.push_back(9);
  const auto body = [](const json& ids) {
    return json{{"model", StoriesModel()}, {"prompt", ids}, {"max_tokens", 12},
                {"temperature", 0},        {"logprobs", 3}, {"return_token_ids", true},
                {"ignore_eos", true}};
  };
  return {body(prompt), body(longer)};
}

TEST_F(TeacherTensorParallelTest, AnswersAreThoseOfOneProcess) {
  Start();
  std::vector<v1::ScoreResponse> expected;
  for (const v1::ScoreRequest& request : Requests()) expected.push_back(ScoreOf(request));
  std::vector<json> expected_texts;
  for (const json& body : Prompts()) expected_texts.push_back(json::parse(BodyOf(Complete(body))));
  const std::string revision = expected[0].revision();
  EXPECT_EQ(teacher_->Terminate(), 0);

  for (const char* size : {"2", "4"}) {
    Start({"--tensor-parallel-size", size});
    EXPECT_EQ(std::to_string(Children().size() + 1), size);
    const std::vector<v1::ScoreRequest> requests = Requests();
    for (size_t i = 0; i < requests.size(); ++i) {
      const v1::ScoreResponse actual = ScoreOf(requests[i]);
      EXPECT_EQ(actual.revision(), revision);
      ASSERT_EQ(actual.ids_size(), expected[i].ids_size());
      for (int j = 0; j < actual.ids_size(); ++j) {
        SCOPED_TRACE(std::to_string(i) + " " + std::to_string(j));
        ExpectSameLogProb(actual.logprobs(j), expected[i].logprobs(j));
      }
      for (int r = 0; r < actual.log_tail_size(); ++r) {
        EXPECT_NEAR(std::exp(actual.log_tail(r)), std::exp(expected[i].log_tail(r)),
                    kProbabilityTolerance);
        ExpectSameLogProb(actual.sampled_logprobs(r), expected[i].sampled_logprobs(r));
      }
      EXPECT_TRUE(std::equal(actual.sampled_ranks().begin(), actual.sampled_ranks().end(),
                             expected[i].sampled_ranks().begin(),
                             expected[i].sampled_ranks().end()));
    }
    const std::vector<json> bodies = Prompts();
    for (size_t i = 0; i < bodies.size(); ++i) {
      const json text = json::parse(BodyOf(Complete(bodies[i])));
      EXPECT_EQ(text["choices"][0]["token_ids"], expected_texts[i]["choices"][0]["token_ids"])
          << size;
    }
    EXPECT_EQ(teacher_->Terminate(), 0) << teacher_->Errors();
  }
}

TEST_F(TeacherTensorParallelTest, LostRankEndsTheTeacher) {
  for (const bool is_busy : {false, true}) {
    Start({"--tensor-parallel-size", "2"});
    const std::vector<pid_t> ranks = Children();
    ASSERT_EQ(ranks.size(), 1u);
    std::thread client;
    if (is_busy) {
      client = std::thread([http = NewClient()] {
        json body = Prompts()[0];
        body["max_tokens"] = 400;
        while (http->Post("/v1/completions", body.dump(), "application/json")) {
        }
      });
    }
    ::kill(ranks[0], SIGKILL);
    EXPECT_EQ(teacher_->WaitForExit(), 70) << teacher_->Errors();
    EXPECT_THAT(teacher_->Errors(), HasSubstr("rank 1"));
    if (client.joinable()) client.join();
  }
}

// A rank that is stopped holds the engine's step, and with it the thread of a request.
TEST_F(TeacherTensorParallelTest, AStuckStepFailsHealthAndDoesNotKeepTheProcess) {
  Start({"--tensor-parallel-size", "2", "--stall-timeout", "1", "--shutdown-timeout", "1"});
  const pid_t rank = Children().at(0);
  ::kill(rank, SIGSTOP);
  std::thread client([http = NewClient()] {
    EXPECT_FALSE(http->Post("/v1/completions", Prompts()[0].dump(), "application/json"));
  });
  std::string unhealthy;
  EXPECT_TRUE(PollUntil(kEnd, [&] {
    const httplib::Result health = http_->Get("/health");
    if (health && health->status != 200) unhealthy = health->body;
    return !health || !unhealthy.empty();
  }));
  EXPECT_THAT(unhealthy, HasSubstr("the engine has made no step for"));
  ::kill(teacher_->pid(), SIGTERM);
  EXPECT_EQ(teacher_->WaitForExit(), 70);
  EXPECT_THAT(teacher_->Errors(), HasSubstr("a step of the engine that has not returned"));
  client.join();
  ::kill(rank, SIGKILL);
}

TEST_F(TeacherTensorParallelTest, LostRankZeroLeavesNothingBehind) {
  Start({"--tensor-parallel-size", "2"});
  const pid_t rank = Children().at(0);
  ::kill(teacher_->pid(), SIGKILL);
  teacher_->WaitForExit();
  // The rank is not a child of this process, so only its state in /proc can be read.
  const auto state = [rank] {
    std::ifstream stat("/proc/" + std::to_string(rank) + "/stat");
    std::string text((std::istreambuf_iterator<char>(stat)), {});
    return text.empty() ? 'X' : text[text.rfind(')') + 2];
  };
  EXPECT_TRUE(PollUntil(kEnd, [&] { return state() == 'X' || state() == 'Z'; }));
}

TEST_F(TeacherTensorParallelTest, WhatCannotBeCutIsRefusedByName) {
  TeacherProcess teacher({"--model", StoriesModel(), "--tensor-parallel-size", "3"});
  EXPECT_EQ(teacher.WaitForExit(), 65);
  EXPECT_THAT(teacher.Errors(), HasSubstr("tensor_parallel_size 3 does not divide the model's "
                                          "num_attention_heads 8"));
}

}  // namespace
}  // namespace taopd::testing
