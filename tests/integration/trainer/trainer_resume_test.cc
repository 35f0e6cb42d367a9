// A run that is killed or stopped and then resumed ends with the same bytes as an undisturbed run.

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

class TrainerResumeTest : public TrainerTest {
 protected:
  Strings Settings(const std::string& run, int64_t steps) {
    const Strings settings = {Concat("trainer.total_steps=", steps), "trainer.save_every=3",
                              "trainer.eval_every=7", Concat("trainer.async_steps=", async_steps_),
                              RunDir(run)};
    return Joined(settings, more_);
  }
  // Kills and resumes a run, and compares it with one that is left alone.
  void KillAndCompare(int64_t async_steps);

  int64_t async_steps_ = 0;
  Strings more_;  // further settings
};

void TrainerResumeTest::KillAndCompare(int64_t async_steps) {
  async_steps_ = async_steps;
  const int64_t steps = StepsOfKilledRun();
  const absl::Duration whole = TimeOf(TrainArguments(Settings("whole", steps)));
  ASSERT_NO_FATAL_FAILURE(
      KillAndResume(TrainArguments(Settings("killed", steps), {"--resume=auto"}), "killed", whole));
  ASSERT_EQ(NewestCheckpoint("killed"), steps);
  const std::string last = CheckpointOf("killed", steps), other = CheckpointOf("whole", steps);
  EXPECT_EQ(FilesOf(last + "/model"), FilesOf(other + "/model"));
  EXPECT_EQ(FileHash(last + "/optimizer.safetensors"), FileHash(other + "/optimizer.safetensors"));
  ExpectSameLosses("killed", "whole");
  EXPECT_EQ(Losses("killed").size(), static_cast<size_t>(steps));
  EXPECT_EQ(ModelOf("killed"), ModelOf("whole"));
  EXPECT_EQ(LastMetric("killed", "policy/staleness"), async_steps);
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
  KillAndCompare(0);
}

TEST_F(TrainerResumeTest, AdaptersKilledAtRandomMomentsOneStepOff) {
  more_ = {"student.lora.rank=4", "student.lora.modules_to_save=[norm]", "optimizer.lr=1e-2"};
  KillAndCompare(1);
}

constexpr int kSteps = 40;

// A run is stopped and resumed repeatedly, while old checkpoints are deleted. Each resumed run
// starts from a checkpoint of a resumed run, whose own first checkpoint is gone by then.
class ResumeChainTest : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    WriteTokenizer();
    std::string pairs;
    for (int row = 0; row < 24; ++row)
      pairs +=
          Concat("{\"prompt\": \"What is ", row, " + 2?\", \"response\": \"", row + 2, "\"}\n");
    WriteFile(dir_.File("text.jsonl"), pairs);
  }

  Strings Settings(const std::string& run, const std::string& more) {
    return {RunDir(run), "trainer.save_every=1", Concat("trainer.total_steps=", kSteps),
            FileSetting("data.train", "text.jsonl"), more};
  }
  Strings Sft(const std::string& run) {
    return SftArguments(Settings(run, "model.tokenizer=" + dir_.File("tokenizer")));
  }
  Strings Distill(const std::string& run, const std::string& setting) {
    return TrainArguments(Joined(Settings(run, setting), {"eval.measure=none"}));
  }

  // Runs until there is a checkpoint of `step` or later, then requests a stop.
  void StopAfter(const Strings& arguments, int64_t step) {
    Process trainer(Command(arguments), dir_.File("stopped.log"));
    ASSERT_TRUE(AwaitCheckpoint("chain", step, trainer));
    trainer.Signal(SIGTERM);
    ASSERT_EQ(trainer.Wait(), 75) << trainer.Output();
  }

  // Compares the run "chain", which is stopped four times, with the run "whole".
  void ExpectSameAsWhole(const Strings& whole, const Strings& chain) {
    ASSERT_TRUE(Runs(whole));
    const Strings resume = Joined(chain, {"--resume"});
    ASSERT_NO_FATAL_FAILURE(StopAfter(chain, 2));
    for (int stop = 0; stop < 3; ++stop)
      ASSERT_NO_FATAL_FAILURE(StopAfter(resume, NewestCheckpoint("chain") + 5));
    ASSERT_TRUE(Runs(resume));

    const auto model = ModelOf("whole");
    EXPECT_EQ(ModelOf("chain"), model);
    for (const char* file : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                             "config.json", "model.safetensors"}) {
      EXPECT_TRUE(model.contains(file)) << file;
    }
    for (const int step : {kSteps - 1, kSteps}) {
      const std::string chained = CheckpointOf("chain", step), other = CheckpointOf("whole", step);
      EXPECT_EQ(FilesOf(chained + "/model"), FilesOf(other + "/model"));
      EXPECT_EQ(FileHash(chained + "/optimizer.safetensors"),
                FileHash(other + "/optimizer.safetensors"));
    }
    ExpectSameLosses("chain", "whole");
    EXPECT_EQ(Losses("chain").size(), static_cast<size_t>(kSteps));
  }
};

TEST_F(ResumeChainTest, SupervisedTraining) {
  ExpectSameAsWhole(Sft("whole"), Sft("chain"));
  // Random weights end responses as their config.json says, even after they are read again.
  EXPECT_FALSE(Exists("chain/model/generation_config.json"));
}

TEST_F(ResumeChainTest, AStudentWithItsOwnTokenizer) {
  const std::string student = "student.model=" + WriteTextStudent();
  ExpectSameAsWhole(Distill("whole", student), Distill("chain", student));
  EXPECT_TRUE(Exists("chain/model/generation_config.json"));
}

TEST_F(ResumeChainTest, AStudentThatTakesOverATokenizer) {
  const std::string tokenizer = "student.tokenizer=" + dir_.File("tokenizer");
  ExpectSameAsWhole(Distill("whole", tokenizer), Distill("chain", tokenizer));
  EXPECT_TRUE(Exists("chain/model/generation_config.json"));
}

}  // namespace
}  // namespace taopd::testing
