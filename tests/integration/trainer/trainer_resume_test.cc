// A run that is killed or stopped and then resumed ends with the same bytes as an undisturbed run.

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

constexpr int kSteps = 40;

class TrainerResumeTest : public TrainerTest {
 protected:
  Strings Settings(const std::string& run, int64_t steps = kSteps) {
    const Strings settings = {Concat("trainer.total_steps=", steps), "trainer.save_every=3",
                              "trainer.eval_every=7", Concat("trainer.async_steps=", async_steps_),
                              RunDir(run)};
    return Joined(settings, more_);
  }
  void ExpectSameResult(const std::string& a, const std::string& b, int64_t steps = kSteps) {
    ASSERT_EQ(NewestCheckpoint(a), steps);
    const std::string last =
        Concat("/checkpoints/step-", std::string(steps < 100 ? "0000" : "000"), steps);
    for (const std::string& file : {weights_, std::string("/optimizer.safetensors")}) {
      EXPECT_EQ(FileHash(dir_.File(a) + last + file), FileHash(dir_.File(b) + last + file)) << file;
    }
    ExpectSameLosses(a, b);
    EXPECT_EQ(Losses(a).size(), static_cast<size_t>(steps));
    EXPECT_EQ(ModelOf(a), ModelOf(b));
  }
  // Kills and resumes a run, and compares it with one that is left alone.
  void KillAndCompare(int64_t async_steps);

  int64_t async_steps_ = 0;
  Strings more_;  // further settings
  std::string weights_ = "/model/model.safetensors";
};

void TrainerResumeTest::KillAndCompare(int64_t async_steps) {
  async_steps_ = async_steps;
  const int64_t steps = StepsOfKilledRun();
  const absl::Duration whole = TimeOf(TrainArguments(Settings("whole", steps)));
  ASSERT_NO_FATAL_FAILURE(
      KillAndResume(TrainArguments(Settings("killed", steps), {"--resume=auto"}), "killed", whole));
  ExpectSameResult("killed", "whole", steps);
  EXPECT_EQ(LastMetric("killed", "policy/staleness"), async_steps_);
}

TEST_F(TrainerResumeTest, KilledAtRandomMoments) { KillAndCompare(0); }

TEST_F(TrainerResumeTest, KilledAtRandomMomentsOneStepOff) { KillAndCompare(1); }

TEST_F(TrainerResumeTest, KilledAtRandomMomentsTwoStepsOff) { KillAndCompare(2); }

// A run that is made longer lacks the rollouts of its first new steps. Newer weights generate them.
TEST_F(TrainerResumeTest, ALongerRunSaysWhatIsMissing) {
  async_steps_ = 2;
  ASSERT_TRUE(Trains(Settings("run", 6)));
  ASSERT_TRUE(Trains(Settings("run", 7), {"--resume"}));
  EXPECT_THAT(output_, HasSubstr("rollouts are missing in the checkpoint"));
  EXPECT_EQ(LastMetric("run", "policy/staleness"), 0);
  async_steps_ = 1;
  ExpectTrainFails(Settings("run", 8), 64, "trainer.async_steps", {"--resume"});
}

TEST_F(TrainerResumeTest, AdaptersKilledAtRandomMoments) {
  more_ = {"student.lora.rank=4", "optimizer.lr=1e-2"};
  weights_ = "/model/adapter_model.safetensors";
  KillAndCompare(0);
}

TEST_F(TrainerResumeTest, AdaptersKilledAtRandomMomentsOneStepOff) {
  more_ = {"student.lora.rank=4", "student.lora.modules_to_save=[norm]", "optimizer.lr=1e-2"};
  weights_ = "/model/adapter_model.safetensors";
  KillAndCompare(1);
}

}  // namespace
}  // namespace taopd::testing
