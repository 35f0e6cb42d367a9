// Rollouts on servers: whoever generates them, and whatever becomes of the servers, a run ends with
// the bytes of a run that generates them itself.
#include <atomic>

#include "tests/integration/trainer/endpoints/passing_server.h"
#include "tests/integration/trainer/endpoints/rollout_servers.h"

namespace taopd::testing {
namespace {

TEST_F(TrainerEndpointsTest, TheBitsOfARunThatGeneratesItself) {
  Worker worker;
  Start(&worker);
  const std::string endpoints = EndpointsOf({worker.endpoint()});
  for (const int64_t async_steps : {0, 1}) {
    SCOPED_TRACE(async_steps);
    const std::string ahead = Concat("trainer.async_steps=", async_steps);
    const std::string own = Concat("own", async_steps),
                      elsewhere = Concat("elsewhere", async_steps);
    // One update per step, because the second would train on responses of older weights.
    const std::string one_update = "trainer.mini_batch_size=4";
    ExpectTrains(own, {ahead, one_update});
    ExpectTrains(elsewhere, {ahead, one_update, endpoints});
    ExpectSameResult(own, elsewhere);
    EXPECT_EQ(LastMetric(elsewhere, "policy/staleness"), async_steps);
    EXPECT_EQ(LastMetric(elsewhere, "rollout/workers_ready"), 1);
    EXPECT_EQ(LastMetric(elsewhere, "rollout/asked_again"), 0);
    // Nothing is left of the weights.
    EXPECT_FALSE(Exists(elsewhere + "/weights-rank-0"));
  }
  // The engine that generates and the head that trains round differently.
  constexpr double kRounding = 1e-5;
  EXPECT_LT(LastMetric("elsewhere0", "rollout/log_prob_gap_p99"), kRounding);
  EXPECT_GT(LastMetric("elsewhere1", "rollout/log_prob_gap_mean"), kRounding);
  EXPECT_THAT(LogOf(worker), HasSubstr("weights replaced"));
}

TEST_F(TrainerEndpointsTest, WeightsThatAreSentAndAdapters) {
  Worker worker;
  Start(&worker, {"--api-key", "secret"});
  setenv("TAOPD_TEST_ROLLOUT_KEY", "secret", 1);
  const Strings elsewhere = {EndpointsOf({worker.endpoint()}), "rollout.weight_transfer=stream",
                             "rollout.on_update=restart",
                             "rollout.api_key_env=TAOPD_TEST_ROLLOUT_KEY"};
  ExpectTrains("own", {});
  ExpectTrains("sent", elsewhere);
  ExpectSameResult("own", "sent");
  // The base that the server started with has been replaced, so adapters need a fresh one.
  Strings adapters = Joined(elsewhere, {"student.lora.rank=4", "optimizer.lr=1e-2"});
  ExpectTrainFails(Settings("refused", adapters), 65, "adapter of weights that were replaced");
  worker.process.reset();
  Start(&worker, {"--api-key", "secret"});
  const std::string saved = "student.lora.modules_to_save=[norm, lm_head]";
  adapters.push_back(saved);
  adapters.push_back("trainer.async_steps=1");
  ExpectTrains("own_lora",
               {"student.lora.rank=4", saved, "optimizer.lr=1e-2", "trainer.async_steps=1"});
  ExpectTrains("sent_lora", adapters);
  ExpectSameResult("own_lora", "sent_lora");
}

TEST_F(TrainerEndpointsTest, AServerThatAnswersWithOldWeightsIsLeftOutByName) {
  Worker good, bad;
  Start(&good);
  Start(&bad);
  std::atomic<bool> has_weights = false;
  std::atomic<int> num_generated = 0;
  PassingServer old(Concat("127.0.0.1:", bad.port));
  // It swallows weights after the first: it keeps the old ones and says so in its stamps.
  old.set_weights = [&](const auto& request, auto* response) {
    return has_weights.exchange(true) ? grpc::Status::OK : old.Pass(request, response);
  };
  old.change_generate = [&](v1::GenerateRequest* request) {
    ++num_generated;
    request->clear_expected_revision();
  };
  ExpectTrains("own", {});
  const Strings settings = Settings(
      "elsewhere", {EndpointsOf({good.endpoint(), old.endpoint()}), "rollout.max_in_flight=1"});
  ASSERT_TRUE(Trains(settings));
  EXPECT_THAT(output_, HasSubstr("is no longer used"));
  EXPECT_THAT(output_, HasSubstr(old.endpoint()));
  EXPECT_THAT(output_, HasSubstr("instead of step-"));
  EXPECT_EQ(LastMetric("elsewhere", "rollout/workers_left_out"), 1);
  EXPECT_GT(num_generated, 0);
  ExpectSameResult("own", "elsewhere");
}

TEST_F(TrainerEndpointsTest, SaysWhatIsWrongBeforeTheFirstStep) {
  const auto expect_refused = [&](const Strings& more, int code, const std::string& message) {
    ExpectTrainFails(Settings("refused", more), code, message);
  };
  // The teacher takes no weights.
  expect_refused({EndpointsOf({teacher().endpoint()})}, 64, "--trainable");
  EXPECT_THAT(output_, HasSubstr(teacher().endpoint()));
  expect_refused({EndpointsOf({"grpc://127.0.0.1:1"}), "rollout.connect_timeout_s=0.3"}, 69,
                 "no answer within");
  Worker worker;
  Start(&worker, {"--max-model-len", "20"});
  expect_refused({EndpointsOf({worker.endpoint()})}, 64, "at most 20 tokens");
}

}  // namespace
}  // namespace taopd::testing
