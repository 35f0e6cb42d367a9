// Tests of teachers that die, hang, lie or change in the middle of a step. With another endpoint
// the run continues; with a single one it waits. In both cases the weights are those of an
// undisturbed run.
#include "tests/integration/trainer/misbehaving_proxy.h"
#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kSteps[] = "trainer.total_steps=12";

class TeacherOutageTest : public TrainerTest {
 protected:
  // Trains without a disturbance. The other runs are compared with its weights.
  void TrainWhole(const std::string& endpoints) {
    std::string output;
    ASSERT_EQ(Train(endpoints, &output, Settings("whole")), 0) << output;
  }
  static std::vector<std::string> CommonSettings() {
    return {kSteps, "eval.measure=none", "trainer.save_every=1", "teacher.timeout_s=1"};
  }
  std::vector<std::string> Settings(const std::string& run) {
    std::vector<std::string> settings = CommonSettings();
    settings.push_back(Concat("run.dir=", dir_.File(run)));
    return settings;
  }
  // Starts a run and waits until it is after step 3.
  void StartRun(const std::string& run, const std::string& endpoints) {
    std::vector<std::string> arguments = TrainArguments(endpoints, Settings(run));
    arguments.insert(arguments.begin(), BinaryPath("taopd-trainer"));
    trainer_.emplace(arguments, dir_.File(run + ".log"));
    ASSERT_TRUE(PollUntil(absl::Seconds(60),
                          [&] { return NewestCheckpoint(run) >= 3 || !trainer_->running(); }));
    ASSERT_LT(NewestCheckpoint(run), 12) << "the run was over too soon";
  }
  void ExpectSameAsWhole(const std::string& run) {
    EXPECT_EQ(trainer_->Wait(absl::Seconds(120)), 0) << trainer_->Output();
    EXPECT_EQ(FileHash(dir_.File(run + "/model/model.safetensors")),
              FileHash(dir_.File("whole/model/model.safetensors")))
        << run;
  }
  double EndpointMetric(const std::string& run, int port, const std::string& name) {
    return LastMetric(run, Concat("teacher/127_0_0_1_", port, "/", name));
  }

  std::optional<Process> trainer_;
};

// One of three teachers is killed and comes back as another model, and one is stopped.
TEST_F(TeacherOutageTest, OthersAreKilledReplacedAndStopped) {
  TeacherProcess stays(dir_, teacher_model_), stopped(dir_, teacher_model_);
  std::optional<TeacherProcess> replaced(std::in_place, dir_, teacher_model_);
  const int port = replaced->grpc_port();
  const std::string changed = dir_.File("changed");
  std::filesystem::copy(teacher_model_, changed);
  std::string weights = ReadFile(changed + "/model.safetensors");
  weights.back() = static_cast<char>(weights.back() ^ 1);
  std::filesystem::permissions(changed + "/model.safetensors", std::filesystem::perms::owner_all);
  WriteFile(changed + "/model.safetensors", weights);
  ASSERT_NO_FATAL_FAILURE(TrainWhole(stays.endpoint()));

  ASSERT_NO_FATAL_FAILURE(StartRun(
      "run", Concat(replaced->endpoint(), ",", stays.endpoint(), ",", stopped.endpoint())));
  trainer_->Signal(SIGSTOP);  // so that it does not end before the other model starts
  stopped.process().Signal(SIGSTOP);
  replaced->process().Signal(SIGKILL);
  replaced->process().Wait();
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
  TeacherProcess teacher(dir_, teacher_model_);
  std::string endpoints = Concat("\"vllm+http://127.0.0.1:", teacher.http_port(), "\"");
  ASSERT_NO_FATAL_FAILURE(TrainWhole(endpoints));
  std::vector<std::unique_ptr<MisbehavingProxy>> proxies;
  for (const Misbehavior how : {Misbehavior::kSlow, Misbehavior::kGarbage, Misbehavior::kLie,
                                Misbehavior::kAnotherRevision}) {
    proxies.push_back(std::make_unique<MisbehavingProxy>(teacher.http_port()));
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

TEST_F(TeacherOutageTest, TheOnlyTeacherStopsForAWhile) {
  TeacherProcess teacher(dir_, teacher_model_);
  ASSERT_NO_FATAL_FAILURE(TrainWhole(teacher.endpoint()));
  ASSERT_NO_FATAL_FAILURE(StartRun("run", teacher.endpoint()));
  teacher.process().Signal(SIGSTOP);
  EXPECT_TRUE(PollUntil(absl::Seconds(60), [&] {
    return trainer_->Output().find("teacher endpoint fails") != std::string::npos ||
           !trainer_->running();
  }));
  teacher.process().Signal(SIGCONT);
  ExpectSameAsWhole("run");
  EXPECT_GT(LastMetric("run", "teacher/retries"), 0);
}

}  // namespace
}  // namespace taopd::testing
