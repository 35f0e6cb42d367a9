// A run that is killed or stopped and then resumed ends with the same bytes as an undisturbed run.

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

constexpr int kSteps = 40;
constexpr int kStepsPerKill = 8;

int64_t NumberFromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : otherwise;
}

class TrainerResumeTest : public TrainerTest {
 protected:
  std::vector<std::string> Settings(const std::string& run, int64_t steps = kSteps) {
    std::vector<std::string> settings = {
        Concat("trainer.total_steps=", steps), "trainer.save_every=3", "trainer.eval_every=7",
        Concat("trainer.async_steps=", async_steps_), Concat("run.dir=", dir_.File(run))};
    settings.insert(settings.end(), more_.begin(), more_.end());
    return settings;
  }
  void ExpectSameResult(const std::string& a, const std::string& b, int64_t steps = kSteps) {
    ASSERT_EQ(NewestCheckpoint(a), steps);
    const std::string last =
        Concat("/checkpoints/step-", std::string(steps < 100 ? "0000" : "000"), steps);
    for (const std::string& file : {weights_, std::string("/optimizer.safetensors")}) {
      EXPECT_EQ(FileHash(dir_.File(a) + last + file), FileHash(dir_.File(b) + last + file)) << file;
    }
    EXPECT_EQ(Losses(dir_.File(a)), Losses(dir_.File(b)));
    EXPECT_EQ(Losses(dir_.File(a)).size(), static_cast<size_t>(steps));
    EXPECT_EQ(FilesOf(dir_.File(a + "/model")), FilesOf(dir_.File(b + "/model")));
  }
  // Kills and resumes a run, and compares it with one that is left alone. TAOPD_NUM_KILLS is the
  // number of kills (the ctest entry with the label slow sets 50). TAOPD_KILL_SEED is the seed of
  // the moments.
  void KillAtRandomMoments();

  int64_t async_steps_ = 0;
  std::vector<std::string> more_;  // further settings
  std::string weights_ = "/model/model.safetensors";
};

void TrainerResumeTest::KillAtRandomMoments() {
  const int64_t num_kills = NumberFromEnvironment("TAOPD_NUM_KILLS", 5);
  const int64_t seed = NumberFromEnvironment("TAOPD_KILL_SEED", 1);
  std::printf("%lld kills, TAOPD_KILL_SEED=%lld\n", static_cast<long long>(num_kills),
              static_cast<long long>(seed));
  const int64_t steps = kStepsPerKill * (num_kills + 1);
  TeacherProcess teacher(dir_, teacher_model_);
  std::string output;
  const absl::Time start = absl::Now();
  ASSERT_EQ(Train(teacher.endpoint(), &output, Settings("whole", steps)), 0) << output;
  const absl::Duration whole = absl::Now() - start;

  RandomStream random(static_cast<uint64_t>(seed));
  std::vector<std::string> arguments =
      TrainArguments(teacher.endpoint(), Settings("killed", steps), {"--resume=auto"});
  arguments.insert(arguments.begin(), BinaryPath("taopd-trainer"));
  for (int64_t kill = 1; kill <= num_kills; ++kill) {
    Process trainer(arguments, dir_.File("killed.log"));
    // The moment is between the start and twice a kill's share of the whole run, but before the run
    // can end: its last steps are left to the last start.
    const absl::Duration moment =
        whole * (2 * random.NextUniform() / static_cast<double>(num_kills));
    PollUntil(moment, [&] {
      return NewestCheckpoint("killed") >= kStepsPerKill * kill || !trainer.running();
    });
    ASSERT_TRUE(trainer.running()) << trainer.Output();
    trainer.Signal(SIGKILL);
    ASSERT_EQ(trainer.Wait(), 128 + SIGKILL);
  }
  // All kills may come before the first checkpoint.
  ASSERT_EQ(Train(teacher.endpoint(), &output, Settings("killed", steps), {"--resume=auto"}), 0)
      << output;
  ExpectSameResult("killed", "whole", steps);
  EXPECT_EQ(LastMetric("killed", "policy/staleness"), async_steps_);
}

TEST_F(TrainerResumeTest, KilledAtRandomMoments) { KillAtRandomMoments(); }

TEST_F(TrainerResumeTest, KilledAtRandomMomentsOneStepOff) {
  async_steps_ = 1;
  KillAtRandomMoments();
}

TEST_F(TrainerResumeTest, KilledAtRandomMomentsTwoStepsOff) {
  async_steps_ = 2;
  KillAtRandomMoments();
}

// A run that is made longer lacks the rollouts of its first new steps. Newer weights generate them.
TEST_F(TrainerResumeTest, ALongerRunSaysWhatIsMissing) {
  async_steps_ = 2;
  TeacherProcess teacher(dir_, teacher_model_);
  std::string output;
  ASSERT_EQ(Train(teacher.endpoint(), &output, Settings("run", 6)), 0) << output;
  ASSERT_EQ(Train(teacher.endpoint(), &output, Settings("run", 7), {"--resume"}), 0) << output;
  EXPECT_THAT(output, ::testing::HasSubstr("rollouts are missing in the checkpoint"));
  EXPECT_EQ(LastMetric("run", "policy/staleness"), 0);
  async_steps_ = 1;
  EXPECT_EQ(Train(teacher.endpoint(), &output, Settings("run", 8), {"--resume"}), 64) << output;
  EXPECT_THAT(output, ::testing::HasSubstr("trainer.async_steps"));
}

TEST_F(TrainerResumeTest, AdaptersKilledAtRandomMoments) {
  more_ = {"student.lora.rank=4", "optimizer.lr=1e-2"};
  weights_ = "/model/adapter_model.safetensors";
  KillAtRandomMoments();
}

TEST_F(TrainerResumeTest, AdaptersKilledAtRandomMomentsOneStepOff) {
  more_ = {"student.lora.rank=4", "student.lora.modules_to_save=[norm]", "optimizer.lr=1e-2"};
  weights_ = "/model/adapter_model.safetensors";
  async_steps_ = 1;
  KillAtRandomMoments();
}

TEST_F(TrainerResumeTest, StoppedBySigterm) {
  TeacherProcess teacher(dir_, teacher_model_);
  std::string output;
  ASSERT_EQ(Train(teacher.endpoint(), &output, Settings("whole")), 0) << output;
  std::vector<std::string> arguments = TrainArguments(teacher.endpoint(), Settings("stopped"));
  arguments.insert(arguments.begin(), BinaryPath("taopd-trainer"));
  Process trainer(arguments, dir_.File("stopped.log"));
  ASSERT_TRUE(PollUntil(absl::Seconds(60), [&] {
    return std::filesystem::exists(dir_.File("stopped/checkpoints/step-000003")) ||
           !trainer.running();
  }));
  trainer.Signal(SIGTERM);
  ASSERT_EQ(trainer.Wait(), 75) << trainer.Output();
  ASSERT_EQ(Train(teacher.endpoint(), &output, Settings("stopped"), {"--resume"}), 0) << output;
  ExpectSameResult("stopped", "whole");
}

TEST_F(TrainerResumeTest, DamagedNewestCheckpointFallsBack) {
  TeacherProcess teacher(dir_, teacher_model_);
  std::string output;
  ASSERT_EQ(Train(teacher.endpoint(), &output, Settings("run")), 0) << output;
  const std::string expected = FileHash(dir_.File("run/model/model.safetensors"));
  const std::string path = dir_.File("run/checkpoints/step-000040/model/model.safetensors");
  std::string bytes = ReadFile(path);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  WriteFile(path, bytes);
  ASSERT_EQ(Train(teacher.endpoint(), &output, Settings("run"), {"--resume"}), 0) << output;
  EXPECT_EQ(FileHash(dir_.File("run/model/model.safetensors")), expected);
  EXPECT_THAT(output, ::testing::HasSubstr("step-000040"));
}

}  // namespace
}  // namespace taopd::testing
