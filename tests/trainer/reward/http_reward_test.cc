// The protocol of reward servers, and its client against a server on a real socket that misbehaves
// on command.
#include "trainer/reward/http_reward.h"

#include <absl/synchronization/notification.h>

#include "tests/support/status_matchers.h"
#include "tests/trainer/reward/reward_server.h"

namespace taopd::testing {
namespace {

using nlohmann::json;

std::vector<RewardSample> TwoSamples() {
  return {{"a-0", "2+2=", "4\n", "4", "addition", false}, {"a-1", "2+2=", "\xff", "4", "", true}};
}

TEST(RewardProtocol, TheRequestHasTheMembersOfEachSample) {
  const auto body = json::parse(RewardRequestBody(TwoSamples()));
  EXPECT_EQ(body, json::parse(R"({"samples": [
      {"id": "a-0", "prompt": "2+2=", "response": "4\n", "answer": "4", "source": "addition"},
      {"id": "a-1", "prompt": "2+2=", "response": "\ufffd", "answer": "4", "source": ""}]})"));
  EXPECT_EQ(RewardRequestBody({}), R"({"samples":[]})");
}

TEST(RewardProtocol, RewardsComeInAnyOrder) {
  ASSERT_OK_AND_ASSIGN(const std::vector<double> rewards,
                       ParseRewards(R"({"rewards": [{"id": "a-1", "reward": -2, "why": "short"},
                                   {"id": "a-0", "reward": 0.5}], "model": "judge"})",
                                    TwoSamples()));
  EXPECT_EQ(rewards, (std::vector<double>{0.5, -2}));
  ASSERT_OK_AND_ASSIGN(const std::vector<double> none, ParseRewards(R"({"rewards": []})", {}));
  EXPECT_TRUE(none.empty());
}

TEST(RewardProtocol, BadAnswersAreNamed) {
  const auto refused = [](const std::string& body, const std::string& says) {
    EXPECT_ERROR(ParseRewards(body, TwoSamples()), kDataLoss, says);
  };
  const std::string first = R"({"id": "a-0", "reward": 1})";
  const auto with = [&](const std::string& second) {
    return "{\"rewards\": [" + first + ", " + second + "]}";
  };
  refused("", "JSON");
  refused("[]", "no list \"rewards\"");
  refused(R"({"rewards": 1})", "no list \"rewards\"");
  refused(R"({"rewards": [)" + first + "]}", "no reward of \"a-1\"");
  refused(with(first), "two rewards of \"a-0\"");
  refused(with(R"({"id": "a-2", "reward": 1})"), "a reward of \"a-2\", which was not asked for");
  refused(with(R"({"reward": 1})"), "has no \"id\"");
  refused(with(R"({"id": 1, "reward": 1})"), "has no \"id\" that is text");
  refused(with("1"), "has no \"id\"");
  refused(with(R"({"id": "a-1"})"), "the entry of \"a-1\" has no \"reward\"");
  refused(with(R"({"id": "a-1", "reward": NaN})"), "JSON has no NaN");
  refused(with(R"({"id": "a-1", "reward": -Infinity})"), "JSON has no NaN and no infinity");
  refused(with(R"({"id": "a-1", "reward": null})"), "the reward of \"a-1\" is null");
  refused(with(R"({"id": "a-1", "reward": "1"})"), "is \"1\", must be a finite number");
  refused(with(R"({"id": "a-1", "reward": true})"), "is true, must be a finite number");
  refused(with(R"({"id": "a-1", "reward": 1e300})"), "must be a finite number");
}

std::vector<RewardSample> Samples(const std::vector<std::string>& responses) {
  std::vector<RewardSample> samples;
  for (size_t i = 0; i < responses.size(); ++i)
    samples.push_back({Concat("s-", i), "prompt", responses[i], "answer", "source", false});
  return samples;
}

absl::StatusOr<std::vector<double>> Ask(RewardSource& source, std::vector<RewardSample> samples) {
  absl::Notification answered;
  absl::StatusOr<std::vector<double>> result;
  source.Reward(std::move(samples), [&](absl::StatusOr<std::vector<double>> rewards) {
    result = std::move(rewards);
    answered.Notify();
  });
  answered.WaitForNotification();
  return result;
}

TEST(HttpReward, OnePostJudgesABatch) {
  RewardServer server(RewardServer::Right, "/judge/");
  HttpRewardOptions options = server.Options();
  options.api_key = "secret";
  HttpReward source(options);
  ASSERT_OK(source.Connect(absl::Seconds(20)));
  ASSERT_OK_AND_ASSIGN(const std::vector<double> rewards, Ask(source, Samples({"1", "-2.5"})));
  EXPECT_EQ(rewards, (std::vector<double>{1, -2.5}));
  EXPECT_EQ(server.num_requests, 2);
  EXPECT_EQ(server.authorization(), "Bearer secret");
  EXPECT_EQ(source.stats().requests, 1);
  EXPECT_EQ(source.stats().retries, 0);
}

TEST(HttpReward, RequestsAreInFlightTogetherUpToTheLimit) {
  constexpr int kLimit = 3;
  absl::Mutex mutex;
  int num_open = 0, most_open = 0;
  RewardServer server([&](const json& request, httplib::Response& response) {
    {
      absl::MutexLock lock(&mutex);
      most_open = std::max(most_open, ++num_open);
      // Whoever comes first waits for the others, as far as the limit lets them come.
      const auto full = [&] { return most_open == kLimit; };
      mutex.AwaitWithTimeout(absl::Condition(&full), absl::Seconds(60));
      --num_open;
    }
    RewardServer::Right(request, response);
  });
  HttpRewardOptions options = server.Options();
  options.max_in_flight = kLimit;
  std::atomic<int> num_done = 0;
  {
    HttpReward source(options);
    for (int i = 0; i < 9; ++i) {
      source.Reward(Samples({std::to_string(i)}), [&, i](absl::StatusOr<std::vector<double>> r) {
        ASSERT_OK(r);
        EXPECT_EQ(*r, std::vector<double>{static_cast<double>(i)});
        ++num_done;
      });
    }
    while (num_done < 9) std::this_thread::yield();
  }
  EXPECT_EQ(most_open, kLimit);
}

TEST(HttpReward, AnOutageIsRetriedUntilItIsOver) {
  std::atomic<int> num_failures = 0;
  RewardServer server([&](const json& request, httplib::Response& response) {
    const int failure = num_failures++;
    if (failure >= 4) return RewardServer::Right(request, response);
    response.status = failure == 0 ? 503 : failure == 1 ? 429 : failure == 2 ? 500 : 408;
  });
  HttpReward source(server.Options());
  ASSERT_OK_AND_ASSIGN(const std::vector<double> rewards, Ask(source, Samples({"3"})));
  EXPECT_EQ(rewards, std::vector<double>{3});
  EXPECT_EQ(source.stats().retries, 4);
}

TEST(HttpReward, AnOutageBeyondTheBudgetIsUnavailable) {
  // The second pause is longer than the budget, however long the attempts take.
  std::atomic<int> num_failures = 0;
  RewardServer server([&](const json&, httplib::Response& response) {
    response.status = 503;
    if (num_failures++ > 0) response.set_header("Retry-After", "60");
    response.set_content(R"({"error": "the judge sleeps"})", "application/json");
  });
  HttpRewardOptions options = server.Options();
  HttpReward source(options);
  const auto rewards = Ask(source, Samples({"3"}));
  EXPECT_ERROR(rewards, kUnavailable, "after 2 attempts");
  EXPECT_ERROR(rewards, kUnavailable, "the judge sleeps");
  EXPECT_ERROR(rewards, kUnavailable, options.url);
  EXPECT_ERROR(source.Connect(options.outage_budget), kUnavailable, "503");
  // Nobody listens on port 1.
  options.server = *ParseHttpUrl("http://127.0.0.1:1");
  options.first_pause = 2 * options.outage_budget;
  HttpReward nobody(options);
  EXPECT_ERROR(nobody.Connect(options.outage_budget), kUnavailable, "nothing listens there");
}

TEST(HttpReward, AHangEndsAtTheTimeLimit) {
  absl::Notification end;
  std::atomic<int> num_asked = 0;
  std::atomic<bool> hangs = false;
  RewardServer server([&](const json& request, httplib::Response& response) {
    if (num_asked++ == 0 || hangs) end.WaitForNotification();
    RewardServer::Right(request, response);
  });
  HttpRewardOptions options = server.Options();
  options.timeout = absl::Milliseconds(200);
  HttpReward patient(options);
  EXPECT_OK(Ask(patient, Samples({"3"})));  // asked again
  hangs = true;
  options.outage_budget = absl::ZeroDuration();
  HttpReward impatient(options);
  EXPECT_ERROR(Ask(impatient, Samples({"3"})), kUnavailable, "time limit");
  end.Notify();
}

TEST(HttpReward, AMalformedAnswerIsAskedForOnceMore) {
  std::atomic<int> num_malformed = 1;
  RewardServer server([&](const json& request, httplib::Response& response) {
    if (num_malformed-- <= 0) return RewardServer::Right(request, response);
    response.set_content(R"({"rewards": [{"id": "s-0", "reward": NaN}]})", "application/json");
  });
  HttpReward source(server.Options());
  ASSERT_OK_AND_ASSIGN(const std::vector<double> rewards, Ask(source, Samples({"3"})));
  EXPECT_EQ(rewards, std::vector<double>{3});
  num_malformed = 2;
  const int before = server.num_requests;
  EXPECT_ERROR(Ask(source, Samples({"3"})), kDataLoss, "JSON has no NaN");
  EXPECT_EQ(server.num_requests, before + 2);
}

TEST(HttpReward, AnAnswerOfTenMegabytesIsRefused) {
  RewardServer server([](const json&, httplib::Response& response) {
    response.set_content(std::string(10 << 20, ' '), "application/json");
  });
  HttpReward source(server.Options());
  EXPECT_ERROR(Ask(source, Samples({"3"})), kDataLoss, "longer than 1048576 bytes");
}

TEST(HttpReward, ARefusalIsFinal) {
  RewardServer server([](const json&, httplib::Response& response) { response.status = 401; });
  HttpReward source(server.Options());
  EXPECT_ERROR(Ask(source, Samples({"3"})), kFailedPrecondition, "no API key");
  EXPECT_EQ(server.num_requests, 1);
}

TEST(HttpReward, TheEndAnswersWhatIsOpen) {
  absl::Notification end, asked;
  RewardServer server([&](const json& request, httplib::Response& response) {
    if (!asked.HasBeenNotified()) asked.Notify();
    end.WaitForNotification();
    RewardServer::Right(request, response);
  });
  HttpRewardOptions options = server.Options();
  options.max_in_flight = 1;
  int num_cancelled = 0;
  {
    HttpReward source(options);
    for (int i = 0; i < 3; ++i) {
      source.Reward(Samples({"1"}), [&](absl::StatusOr<std::vector<double>> rewards) {
        EXPECT_EQ(rewards.status().code(), kCancelled) << rewards.status();
        ++num_cancelled;
      });
    }
    asked.WaitForNotification();
  }
  EXPECT_EQ(num_cancelled, 3);
  end.Notify();
}

TEST(HttpReward, SettingsThatCannotBeUsedAreNamed) {
  RewardConfig config = {.url = "grpc://127.0.0.1:9"};
  EXPECT_ERROR(HttpReward::Make(config), kInvalidArgument,
               "reward.url = grpc://127.0.0.1:9: must begin with http://");
  config.url = "http://127.0.0.1:9";
  config.api_key_env = "TAOPD_TEST_NO_SUCH_VARIABLE";
  EXPECT_ERROR(HttpReward::Make(config), kInvalidArgument,
               "reward.api_key_env: the environment variable");
  ::setenv("TAOPD_TEST_KEY", "secret\n", /*overwrite=*/1);
  config.api_key_env = "TAOPD_TEST_KEY";
  EXPECT_ERROR(HttpReward::Make(config), kInvalidArgument,
               "variable TAOPD_TEST_KEY: the API key has a space, a line break");
}

}  // namespace
}  // namespace taopd::testing
