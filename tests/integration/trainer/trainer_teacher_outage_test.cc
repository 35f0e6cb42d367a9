// Teachers that die, hang, lie or change in the middle of a step. With another endpoint the run
// goes on, with one it waits; in both cases the weights are those of an undisturbed run.
#include "tests/integration/trainer/misbehaving_proxy.h"
#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kSteps[] = "trainer.total_steps=16";

class TeacherOutageTest : public TrainerTest {
 protected:
  // Trains without a disturbance; its weights are what the others are compared with.
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
    ASSERT_LT(NewestCheckpoint(run), 16) << "the run was over too soon";
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

TEST_F(TeacherOutageTest, OneOfTwoIsKilledStoppedOrReplaced) {
  TeacherProcess stays(dir_, teacher_model_);
  ASSERT_NO_FATAL_FAILURE(TrainWhole(stays.endpoint()));
  std::optional<TeacherProcess> other(std::in_place, dir_, teacher_model_);
  const int port = other->grpc_port();
  const std::string both = Concat(other->endpoint(), ",", stays.endpoint());

  ASSERT_NO_FATAL_FAILURE(StartRun("killed", both));
  other->process().Signal(SIGKILL);
  ExpectSameAsWhole("killed");
  EXPECT_GT(EndpointMetric("killed", port, "left_out_share"), 0);
  EXPECT_EQ(EndpointMetric("killed", stays.grpc_port(), "failures"), 0);

  other.emplace(dir_, teacher_model_, port);
  ASSERT_NO_FATAL_FAILURE(StartRun("stopped", both));
  other->process().Signal(SIGSTOP);
  ExpectSameAsWhole("stopped");

  // Another model comes up at the same place.
  other.reset();
  other.emplace(dir_, teacher_model_, port);
  const std::string changed = dir_.File("changed");
  std::filesystem::copy(teacher_model_, changed);
  std::string weights = ReadFile(changed + "/model.safetensors");
  weights.back() = static_cast<char>(weights.back() ^ 1);
  std::filesystem::permissions(changed + "/model.safetensors", std::filesystem::perms::owner_all);
  WriteFile(changed + "/model.safetensors", weights);
  ASSERT_NO_FATAL_FAILURE(StartRun("replaced", both));
  trainer_->Signal(SIGSTOP);  // so that the run does not end before the other model is there
  other.reset();
  other.emplace(dir_, changed, port);
  trainer_->Signal(SIGCONT);
  ExpectSameAsWhole("replaced");
  EXPECT_THAT(
      trainer_->Output(),
      HasSubstr(Concat("is another teacher and is left out endpoint=grpc://127.0.0.1:", port)));
}

TEST_F(TeacherOutageTest, OneOfTwoIsSlowOrLies) {
  TeacherProcess teacher(dir_, teacher_model_);
  const std::string direct = Concat("\"vllm+http://127.0.0.1:", teacher.http_port(), "\"");
  ASSERT_NO_FATAL_FAILURE(TrainWhole(direct));
  for (const auto& [how, name] :
       {std::pair(Misbehavior::kSlow, "slow"), std::pair(Misbehavior::kGarbage, "garbage"),
        std::pair(Misbehavior::kLie, "lie"), std::pair(Misbehavior::kAnotherRevision, "another")}) {
    MisbehavingProxy proxy(teacher.http_port());
    proxy.Misbehave(how, /*after=*/30);
    trainer_.reset();
    std::vector<std::string> arguments =
        TrainArguments(Concat("\"", proxy.endpoint(), "\",", direct), Settings(name));
    arguments.insert(arguments.begin(), BinaryPath("taopd-trainer"));
    trainer_.emplace(arguments, dir_.File(Concat(name, ".log")));
    ExpectSameAsWhole(name);
    EXPECT_GT(proxy.num_misbehaved(), 0) << name;
    EXPECT_THAT(trainer_->Output(), HasSubstr(Concat("endpoint=", proxy.endpoint()))) << name;
  }
}

TEST_F(TeacherOutageTest, TheOnlyTeacherStopsForAWhile) {
  TeacherProcess teacher(dir_, teacher_model_);
  ASSERT_NO_FATAL_FAILURE(TrainWhole(teacher.endpoint()));
  ASSERT_NO_FATAL_FAILURE(StartRun("waits", teacher.endpoint()));
  teacher.process().Signal(SIGSTOP);
  EXPECT_TRUE(PollUntil(absl::Seconds(60), [&] {
    return trainer_->Output().find("teacher endpoint fails") != std::string::npos ||
           !trainer_->running();
  }));
  teacher.process().Signal(SIGCONT);
  ExpectSameAsWhole("waits");
  EXPECT_GT(LastMetric("waits", "teacher/retries"), 0);
}

}  // namespace
}  // namespace taopd::testing
