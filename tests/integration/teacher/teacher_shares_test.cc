// Tests of the real taopd-teacher with one client that floods it and one that does not.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "tests/integration/teacher/teacher_binary_fixture.h"

namespace taopd::testing {
namespace {

constexpr int kFloodConnections = 64;
constexpr int kPoliteRequests = 30;
constexpr int kPromptTokens = 200;

class TeacherSharesTest : public TeacherBinaryFixture {
 protected:
  static httplib::Headers KeyOf(const std::string& client) {
    return {{"Authorization", "Bearer key-of-" + client}};
  }
  static std::string Body(int64_t salt) {
    std::vector<int64_t> prompt;
    for (int64_t t = 0; t < kPromptTokens; ++t) prompt.push_back(3 + (t * 7 + salt) % 500);
    return nlohmann::json{{"prompt", prompt}, {"max_tokens", 1}, {"prompt_logprobs", 0}}.dump();
  }
  // Sends one request after another on one connection until `stop`.
  void Flood(const std::atomic<bool>& stop, int64_t salt) {
    httplib::Client client("127.0.0.1", teacher_->http_port());
    client.set_keep_alive(true);
    while (!stop) {
      const auto answer =
          client.Post("/v1/completions", KeyOf("flooder"), Body(salt), "application/json");
      ASSERT_TRUE(answer) << httplib::to_string(answer.error());
      ++(answer->status == 200 ? num_served_ : num_refused_);
      if (answer->status != 200) {
        EXPECT_EQ(answer->status, 429) << answer->body;
      }
    }
  }

  std::atomic<int64_t> num_served_{0}, num_refused_{0};
};

TEST_F(TeacherSharesTest, APoliteClientIsAnsweredWhileAnotherFloodsTheQueue) {
  Start({"--api-key", "key-of-flooder", "--api-key", "key-of-polite", "--max-queued-tokens",
         std::to_string(20 * kPromptTokens), "--max-num-batched-tokens",
         std::to_string(kPromptTokens)});
  std::atomic<bool> stop{false};
  std::vector<std::thread> flood;
  for (int i = 0; i < kFloodConnections; ++i) flood.emplace_back([&, i] { Flood(stop, i); });
  while (num_refused_ == 0) std::this_thread::yield();
  for (int i = 0; i < kPoliteRequests; ++i) {
    SCOPED_TRACE(i);
    BodyOf(http_->Post("/v1/completions", KeyOf("polite"), Body(1000 + i), "application/json"));
  }
  stop = true;
  for (std::thread& thread : flood) thread.join();
  EXPECT_GT(num_served_, 0);
  const std::string metrics = http_->Get("/metrics")->body;
  EXPECT_THAT(metrics, HasSubstr("taopd_teacher_refused_for_queue_total{reason=\"full\"} 0\n"));
  EXPECT_THAT(metrics, HasSubstr("taopd_teacher_refused_for_queue_total{reason=\"client_share\"} " +
                                 std::to_string(num_refused_) + "\n"));
  EXPECT_EQ(teacher_->Terminate(), 0);
}

// A short request is answered within three steps of the engine (scheduler.h). The metric that
// counts them also counts the steps that run while the request and the answer are on their way,
// which with this small model is one or two. So the least number of several tries is compared, with
// kTransitSteps more. The pool holds only a part of the flooder's sequences, and the longest prompt
// below just fits a step.
TEST_F(TeacherSharesTest, ShortRequestsBesideManyLongTextsTakeAFewSteps) {
  constexpr int kMostSteps = 3, kTransitSteps = 2, kTries = 15, kStepTokens = 256;
  Start({"--api-key", "key-of-flooder", "--api-key", "key-of-polite", "--kv-cache-memory-bytes",
         "16MiB", "--max-num-batched-tokens", std::to_string(kStepTokens)});
  const auto num_steps = [this] {
    const std::string metrics = http_->Get("/metrics")->body;
    const std::string name = "\nvllm:iteration_tokens_total_count";
    return std::stod(metrics.substr(metrics.find(' ', metrics.find(name))));
  };
  const auto ask = [this](const nlohmann::json& body) {
    BodyOf(http_->Post("/v1/completions", KeyOf("polite"), body.dump(), "application/json"));
  };
  std::atomic<bool> stop{false};
  std::thread flooder([&] {
    httplib::Client client("127.0.0.1", teacher_->http_port());
    const nlohmann::json body = {{"prompt", {1, 403, 407, 261}}, {"n", 256},  {"max_tokens", 480},
                                 {"ignore_eos", true},           {"seed", 1}, {"stream", true}};
    httplib::Request request;
    request.method = "POST";
    request.path = "/v1/completions";
    request.headers = KeyOf("flooder");
    request.set_header("Content-Type", "application/json");
    request.body = body.dump();
    request.content_receiver = [&](const char*, size_t, uint64_t, uint64_t) { return !stop; };
    while (!stop) client.send(request);
  });
  while (http_->Get("/metrics")
             ->body.find("vllm:num_preemptions_total{model_name=\"" + StoriesModel() + "\"} 0\n") !=
         std::string::npos) {
    std::this_thread::yield();
  }
  for (const int num_tokens : {8, kStepTokens / 4 + 1, kStepTokens - 1}) {
    for (const bool score : {false, true}) {
      double least = INFINITY;
      for (int i = 0; i < kTries; ++i) {
        std::vector<int> prompt;
        for (int t = 0; t < num_tokens; ++t) prompt.push_back(3 + (t * 7 + i * 11) % 500);
        nlohmann::json body = {{"prompt", prompt}, {"max_tokens", score ? 0 : 1}};
        if (score) body.update({{"echo", true}, {"prompt_logprobs", 1}});
        const double before = num_steps();
        ask(body);
        least = std::min(least, num_steps() - before);
      }
      EXPECT_LE(least, kMostSteps + kTransitSteps) << num_tokens << (score ? " scored" : "");
    }
  }
  stop = true;
  flooder.join();
}

}  // namespace
}  // namespace taopd::testing
