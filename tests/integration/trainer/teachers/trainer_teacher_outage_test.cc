// Tests of teachers that die, hang, lie or change in the middle of a step. With another endpoint
// the run continues; with a single one it waits. In both cases the weights are those of an
// undisturbed run.
#include "tests/integration/trainer/misbehaving_proxy.h"
#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

using ::testing::HasSubstr;

class TeacherOutageTest : public TrainerTest {
 protected:
  // Trains without a disturbance. The other runs are compared with its weights.
  void TrainWhole(const std::string& endpoints) {
    ASSERT_TRUE(Trains(Settings("whole", endpoints)));
  }
  Strings Settings(const std::string& run, const std::string& endpoints) {
    const Strings settings = {Endpoints(endpoints),   "trainer.total_steps=12", "eval.measure=none",
                              "trainer.save_every=1", "teacher.timeout_s=1",    RunDir(run)};
    return Joined(settings, more_);
  }
  // Starts a run and waits until it is after step 3.
  void StartRun(const std::string& run, const std::string& endpoints) {
    trainer_.emplace(Command(TrainArguments(Settings(run, endpoints))), dir_.File(run + ".log"));
    ASSERT_TRUE(AwaitCheckpoint(run, 3, *trainer_));
    ASSERT_LT(NewestCheckpoint(run), 12) << "the run was over too soon";
  }
  void ExpectSameAsWhole(const std::string& run) {
    EXPECT_EQ(trainer_->Wait(absl::Seconds(120)), 0) << trainer_->Output();
    EXPECT_EQ(WeightsOf(run), WeightsOf("whole")) << run;
  }
  double EndpointMetric(const std::string& run, int port, const std::string& name) {
    return LastMetric(run, Concat("teacher/127_0_0_1_", port, "/", name));
  }

  Strings more_;  // settings
  std::optional<Process> trainer_;
};

// One of three teachers is killed and comes back as another model, and one is stopped.
TEST_F(TeacherOutageTest, OthersAreKilledReplacedAndStopped) {
  TeacherProcess stays(dir_, stories_), stopped(dir_, stories_);
  std::optional<TeacherProcess> replaced(std::in_place, dir_, stories_);
  const int port = replaced->grpc_port();
  const std::string changed = dir_.File("changed");
  std::filesystem::copy(stories_, changed);
  Damage(changed + "/model.safetensors");
  ASSERT_NO_FATAL_FAILURE(TrainWhole(stays.endpoint()));

  ASSERT_NO_FATAL_FAILURE(StartRun(
      "run", Concat(replaced->endpoint(), ",", stays.endpoint(), ",", stopped.endpoint())));
  trainer_->Signal(SIGSTOP);  // so that it does not end before the other model starts
  stopped.process().Signal(SIGSTOP);
  replaced->Kill();
  replaced.emplace(dir_, changed, port);
  trainer_->Signal(SIGCONT);
  ExpectSameAsWhole("run");
  EXPECT_THAT(
      trainer_->Output(),
      HasSubstr(Concat("is another teacher and is left out endpoint=grpc://127.0.0.1:", port)));
  EXPECT_THAT(trainer_->Output(),
              HasSubstr(Concat("teacher endpoint fails endpoint=", stopped.endpoint())));
  for (const int wrong : {port, stopped.grpc_port()}) {
    EXPECT_GT(EndpointMetric("run", wrong, "left_out_share"), 0);
    EXPECT_GT(EndpointMetric("run", wrong, "failures"), 0);
  }
  EXPECT_EQ(EndpointMetric("run", stays.grpc_port(), "failures"), 0);
}

// One of five endpoints is slow, one sends garbage, one lies and one reports that it has changed.
TEST_F(TeacherOutageTest, OthersAreSlowOrLie) {
  std::string endpoints = teacher().vllm_endpoint();
  ASSERT_NO_FATAL_FAILURE(TrainWhole(endpoints));
  std::vector<std::unique_ptr<MisbehavingProxy>> proxies;
  for (const Misbehavior how : {Misbehavior::kSlow, Misbehavior::kGarbage, Misbehavior::kLie,
                                Misbehavior::kAnotherRevision}) {
    proxies.push_back(std::make_unique<MisbehavingProxy>(teacher().http_port()));
    // Connect requests nine scores: the probe, and the canary twice.
    proxies.back()->Misbehave(how, /*after=*/9 + 6);
    endpoints += Concat(",\"", proxies.back()->endpoint(), "\"");
  }
  ASSERT_NO_FATAL_FAILURE(StartRun("run", endpoints));
  ExpectSameAsWhole("run");
  for (const auto& proxy : proxies) {
    EXPECT_GT(proxy->num_misbehaved(), 0);
    EXPECT_THAT(trainer_->Output(), HasSubstr(Concat("endpoint=", proxy->endpoint())));
  }
}

// A server whose keys are replaced refuses the run's key. Another one takes over; without another,
// the run saves and ends, and continues once the key is accepted.
TEST_F(TeacherOutageTest, AKeyIsRefusedDuringTheRun) {
  const std::string keys = dir_.File("keys");
  WriteFile(keys, "the-key\n");
  setenv("TAOPD_TEST_TEACHER_KEY", "the-key", 1);
  more_ = {"teacher.api_key_env=TAOPD_TEST_TEACHER_KEY"};
  TeacherProcess stays(dir_, stories_, 0, {"--api-key", "the-key"});
  const TempDir other_dir;  // with a log of its own
  TeacherProcess changes(other_dir, stories_, 0, {"--api-key-file", keys});
  const auto replace_key = [&](const std::string& key) {
    WriteFile(keys, key + "\n");
    const auto last_time = [&] { return changes.process().Output().rfind("were reopened"); };
    const size_t before = last_time();
    changes.process().Signal(SIGHUP);
    EXPECT_TRUE(PollUntil(absl::Seconds(60), [&] { return last_time() != before; }));
  };
  ASSERT_NO_FATAL_FAILURE(TrainWhole(stays.endpoint()));
  const std::string refused =
      Concat("refuses the API key and is left out endpoint=", changes.endpoint());

  ASSERT_NO_FATAL_FAILURE(StartRun("run", Concat(changes.endpoint(), ",", stays.endpoint())));
  trainer_->Signal(SIGSTOP);  // so that it does not end before the key is another one
  replace_key("another-key");
  trainer_->Signal(SIGCONT);
  ExpectSameAsWhole("run");
  EXPECT_THAT(trainer_->Output(), HasSubstr(refused));

  replace_key("the-key");
  ASSERT_NO_FATAL_FAILURE(StartRun("alone", changes.endpoint()));
  trainer_->Signal(SIGSTOP);
  replace_key("another-key");
  trainer_->Signal(SIGCONT);
  EXPECT_EQ(trainer_->Wait(), 69) << trainer_->Output();
  EXPECT_THAT(trainer_->Output(), HasSubstr(refused));
  EXPECT_LT(NewestCheckpoint("alone"), 12);
  replace_key("the-key");
  trainer_.emplace(Command(TrainArguments(Settings("alone", changes.endpoint()), {"--resume"})),
                   dir_.File("alone.log"));
  ExpectSameAsWhole("alone");
}

TEST_F(TeacherOutageTest, TheOnlyTeacherStopsForAWhile) {
  StartTeacher(stories_);
  ASSERT_NO_FATAL_FAILURE(TrainWhole(teacher().endpoint()));
  ASSERT_NO_FATAL_FAILURE(StartRun("run", teacher().endpoint()));
  teacher().process().Signal(SIGSTOP);
  EXPECT_TRUE(AwaitOutput("teacher endpoint fails", *trainer_));
  teacher().process().Signal(SIGCONT);
  ExpectSameAsWhole("run");
  EXPECT_GT(LastMetric("run", "teacher/retries"), 0);
}

}  // namespace
}  // namespace taopd::testing
