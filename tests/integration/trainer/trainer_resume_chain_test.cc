// A run that is stopped and resumed repeatedly, while old checkpoints are deleted, ends with
// the files of an undisturbed run. Each resumed run starts from a checkpoint of a resumed run,
// whose own first checkpoint is gone by then.

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

constexpr int kTotalSteps = 40;

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
    return {RunDir(run), "trainer.save_every=1", Concat("trainer.total_steps=", kTotalSteps),
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
    for (const int step : {kTotalSteps - 1, kTotalSteps}) {
      const std::string chained = CheckpointOf("chain", step), other = CheckpointOf("whole", step);
      EXPECT_EQ(FilesOf(chained + "/model"), FilesOf(other + "/model"));
      EXPECT_EQ(FileHash(chained + "/optimizer.safetensors"),
                FileHash(other + "/optimizer.safetensors"));
    }
    ExpectSameLosses("chain", "whole");
    EXPECT_EQ(Losses("chain").size(), static_cast<size_t>(kTotalSteps));
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
