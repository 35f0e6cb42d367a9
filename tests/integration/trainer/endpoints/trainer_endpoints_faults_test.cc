// Rollouts on servers of runs with several ranks, of trainers that are killed, and of servers that
// start again at a bad moment: the run ends with the bytes of one that generates by itself.
#include <absl/synchronization/mutex.h>
#include <absl/synchronization/notification.h>

#include "tests/integration/trainer/endpoints/passing_server.h"
#include "tests/integration/trainer/endpoints/rollout_servers.h"

namespace taopd::testing {
namespace {

class TrainerEndpointsFaultsTest : public TrainerEndpointsTest {
 protected:
  // Returns the endpoints of all workers.
  Strings StartAll(std::vector<Worker>* workers) {
    Strings endpoints;
    for (Worker& worker : *workers) {
      Start(&worker);
      endpoints.push_back(worker.endpoint());
    }
    return endpoints;
  }
  // Kills the trainer repeatedly, on `num_ranks` ranks with a server each.
  void KillAndCompare(int64_t num_ranks, int64_t async_steps) {
    const int64_t steps = StepsOfKilledRun();
    std::vector<Worker> workers(static_cast<size_t>(num_ranks));
    const Strings endpoints = StartAll(&workers);
    Strings settings = {"dist.deterministic=true", Concat("trainer.async_steps=", async_steps)};
    const absl::Duration whole = TimeOf(Arguments("own", settings, steps));
    settings.push_back(EndpointsOf(endpoints));
    ASSERT_NO_FATAL_FAILURE(KillAndResume(Arguments("killed", settings, steps, {"--resume=auto"}),
                                          "killed", whole, num_ranks));
    ExpectSame("own", "killed", num_ranks);
    EXPECT_EQ(LastMetric("killed", "policy/staleness"), async_steps);
    for (const Worker& worker : workers) EXPECT_THAT(LogOf(worker), HasSubstr("weights replaced"));
    EXPECT_FALSE(Exists(Concat("killed/weights-rank-", num_ranks - 1)));
  }
  // Kills one of two servers repeatedly, up to `most_kills` times, and starts it again.
  void KillServersAndCompare(int64_t num_ranks, const Strings& settings, int64_t most_kills,
                             absl::Duration shortest) {
    const int64_t steps = 25 * most_kills;
    Worker a, b;
    Start(&a);
    Start(&b);
    ExpectTrains("own", settings, steps);
    const Strings elsewhere =
        Joined(settings, {EndpointsOf({a.endpoint(), b.endpoint()}), "rollout.max_in_flight=4"});
    Process trainer(Command(Arguments("elsewhere", elsewhere, steps), num_ranks),
                    dir_.File("elsewhere.log"));
    ASSERT_TRUE(AwaitCheckpoint("elsewhere", 3, trainer));
    const int64_t num_kills =
        KillServersOf(trainer, {&a, &b}, most_kills, shortest, shortest + absl::Seconds(0.3));
    ASSERT_EQ(trainer.Wait(absl::Seconds(120)), 0) << trainer.Output();
    EXPECT_GE(num_kills, 2);
    ExpectSame("own", "elsewhere", num_ranks);
    EXPECT_EQ(LastMetric("elsewhere", "rollout/workers_left_out"), 0);
  }
  // One rank adds the losses of its rows in the order of a run that generates by itself.
  void ExpectSame(const std::string& own, const std::string& other, int64_t num_ranks) {
    if (num_ranks == 1) ExpectSameLosses(own, other);
    ExpectSameModel(own, other);
  }
};

TEST_F(TrainerEndpointsFaultsTest, ATrainerKilledAtRandomMoments) { KillAndCompare(1, 0); }

TEST_F(TrainerEndpointsFaultsTest, ATrainerKilledAtRandomMomentsOneStepOff) {
  KillAndCompare(1, 1);
}

TEST_F(TrainerEndpointsFaultsTest, TwoRanksKilledAtRandomMomentsTwoStepsOff) {
  KillAndCompare(2, 2);
}

TEST_F(TrainerEndpointsFaultsTest, AServerThatIsKilledAgainAndAgainChangesNothing) {
  KillServersAndCompare(1, {}, NumKills(4), absl::Seconds(0.1));
}

// The rank of a killed server waits for it, and the other rank waits in the step.
TEST_F(TrainerEndpointsFaultsTest, AServerOfOneOfTwoRanksIsKilledAgainAndAgain) {
  KillServersAndCompare(2, {"dist.deterministic=true", "trainer.async_steps=1"}, NumKills(3),
                        absl::Seconds(0.2));
}

// Each rank has two servers, and one of the four is lost for good.
TEST_F(TrainerEndpointsFaultsTest, ARankGoesOnWithTheServerThatItHasLeft) {
  constexpr int64_t kManySteps = 30;
  std::vector<Worker> workers(4);
  const Strings endpoints = StartAll(&workers);
  const Strings settings = {"dist.deterministic=true"};
  ExpectTrains("own", settings, kManySteps);
  const Strings elsewhere = Joined(settings, {EndpointsOf(endpoints)});
  Process trainer(Command(Arguments("two", elsewhere, kManySteps), 2), dir_.File("two.log"));
  ASSERT_TRUE(AwaitCheckpoint("two", 3, trainer));
  workers[3].process->Signal(SIGKILL);
  ASSERT_EQ(trainer.Wait(absl::Seconds(120)), 0) << trainer.Output();
  EXPECT_THAT(trainer.Output(), HasSubstr(workers[3].endpoint()));
  ExpectSameModel("own", "two");
}

// The rollouts in flight have failed, too, so there can be no checkpoint of the last step.
TEST_F(TrainerEndpointsFaultsTest, AnOutageOneStepOffHasTheCodeOfAnOutage) {
  Worker worker;
  Start(&worker);
  Process trainer(Command(Arguments("run",
                                    Words(EndpointsOf({worker.endpoint()}) +
                                          " trainer.async_steps=1 trainer.save_every=0 "
                                          "eval.measure=none rollout.outage_budget_s=0.5"),
                                    10000)),
                  dir_.File("run.log"));
  ASSERT_TRUE(PollUntil(absl::Seconds(60), [&] { return !Losses("run").empty(); }))
      << trainer.Output();
  worker.process->Signal(SIGKILL);
  EXPECT_EQ(trainer.Wait(), 69) << trainer.Output();
  EXPECT_THAT(trainer.Output(), HasSubstr("no checkpoint is possible"));
}

TEST_F(TrainerEndpointsFaultsTest, AServerThatTakesNoPartOfAFileIsLost) {
  Worker behind, whole;
  Start(&behind);
  Start(&whole);
  PassingServer forgetful(Concat("127.0.0.1:", behind.port));
  // It confirms each part without having taken any of it.
  forgetful.put_weights = [](const auto& request, auto* response) {
    response->set_next_offset(request.offset());
    return grpc::Status::OK;
  };
  ExpectTrains("own", {});
  ExpectTrains("sent", {EndpointsOf({forgetful.endpoint(), whole.endpoint()}),
                        "rollout.weight_transfer=stream"});
  EXPECT_THAT(output_, HasSubstr("next_offset is 0 after a part at 0"));
  ExpectSameResult("own", "sent");
}

// A server that starts again has lost the parts that it received, so the file is sent from the
// beginning.
TEST_F(TrainerEndpointsFaultsTest, AServerThatStartsAgainDuringATransferGetsAllOfIt) {
  Worker worker;
  Start(&worker);
  absl::Notification part, released;
  absl::Mutex mutex;
  Strings files;  // VERSION/FILE of all parts with data, in their order
  PassingServer between(Concat("127.0.0.1:", worker.port));
  // It holds the first answer to a part until it is released.
  between.put_weights = [&](const auto& request, auto* response) {
    const grpc::Status status = between.Pass(request, response);
    if (request.data().empty()) return status;
    {
      absl::MutexLock lock(&mutex);
      files.push_back(request.version() + "/" + request.file());
      if (files.size() > 1) return status;
    }
    part.Notify();
    released.WaitForNotificationWithTimeout(absl::Seconds(60));
    return status;
  };
  ExpectTrains("own", {});
  Process trainer(
      Command(Arguments("sent",
                        {EndpointsOf({between.endpoint()}), "rollout.weight_transfer=stream"}, 12)),
      dir_.File("sent.log"));
  ASSERT_TRUE(part.WaitForNotificationWithTimeout(absl::Seconds(60))) << trainer.Output();
  KillAndRestart(&worker);
  released.Notify();
  ASSERT_EQ(trainer.Wait(absl::Seconds(120)), 0) << trainer.Output();
  ExpectSameResult("own", "sent");
  absl::MutexLock lock(&mutex);
  ASSERT_FALSE(files.empty());
  EXPECT_EQ(std::count(files.begin(), files.end(), files[0]), 2) << files[0];
  EXPECT_THAT(LogOf(worker), HasSubstr("weights replaced"));
}

}  // namespace
}  // namespace taopd::testing
