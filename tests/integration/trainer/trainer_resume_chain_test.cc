// A run that is stopped and resumed again and again, while old checkpoints are deleted, ends with
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

  std::vector<std::string> SftArguments(const std::string& run) {
    return {"sft",
            "--config",
            dir_.File("sft.yaml"),
            "--set",
            Concat("run.dir=", dir_.File(run)),
            "--set",
            "trainer.save_every=1",
            "--set",
            Concat("trainer.total_steps=", kTotalSteps),
            "--set",
            Concat("data.train=[", dir_.File("text.jsonl"), "]"),
            "--set",
            Concat("model.tokenizer=", dir_.File("tokenizer"))};
  }
  std::vector<std::string> DistillArguments(const std::string& endpoint, const std::string& run,
                                            std::vector<std::string> settings) {
    settings.insert(settings.end(),
                    {Concat("run.dir=", dir_.File(run)), "trainer.save_every=1",
                     Concat("trainer.total_steps=", kTotalSteps), "eval.measure=none",
                     Concat("data.train=[", dir_.File("text.jsonl"), "]")});
    return TrainArguments(endpoint, settings);
  }

  // Runs until there is a checkpoint of `step` or later, then requests a stop.
  void StopAfter(std::vector<std::string> arguments, const std::string& run, int64_t step) {
    arguments.insert(arguments.begin(), BinaryPath("taopd-trainer"));
    Process trainer(arguments, dir_.File("stopped.log"));
    ASSERT_TRUE(PollUntil(absl::Seconds(60),
                          [&] { return NewestCheckpoint(run) >= step || !trainer.running(); }));
    trainer.Signal(SIGTERM);
    ASSERT_EQ(trainer.Wait(), 75) << trainer.Output();
  }

  // Compares the run "chain", which is stopped four times, with the run "whole".
  void ExpectSameAsWhole(const std::vector<std::string>& whole,
                         const std::vector<std::string>& chain) {
    std::string output;
    ASSERT_EQ(Run(whole, &output), 0) << output;
    std::vector<std::string> resume = chain;
    resume.push_back("--resume");
    ASSERT_NO_FATAL_FAILURE(StopAfter(chain, "chain", 2));
    for (int stop = 0; stop < 3; ++stop)
      ASSERT_NO_FATAL_FAILURE(StopAfter(resume, "chain", NewestCheckpoint("chain") + 5));
    ASSERT_EQ(Run(resume, &output), 0) << output;

    const auto model = FilesOf(dir_.File("whole/model"));
    EXPECT_EQ(FilesOf(dir_.File("chain/model")), model);
    for (const char* file : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                             "config.json", "model.safetensors"}) {
      EXPECT_TRUE(model.contains(file)) << file;
    }
    for (const int step : {kTotalSteps - 1, kTotalSteps}) {
      const std::string checkpoint = Concat("/checkpoints/step-0000", step);
      EXPECT_EQ(FilesOf(dir_.File("chain" + checkpoint + "/model")),
                FilesOf(dir_.File("whole" + checkpoint + "/model")));
      EXPECT_EQ(FileHash(dir_.File("chain" + checkpoint + "/optimizer.safetensors")),
                FileHash(dir_.File("whole" + checkpoint + "/optimizer.safetensors")));
    }
    EXPECT_EQ(Losses(dir_.File("chain")), Losses(dir_.File("whole")));
    EXPECT_EQ(Losses(dir_.File("chain")).size(), static_cast<size_t>(kTotalSteps));
  }
};

TEST_F(ResumeChainTest, SupervisedTraining) {
  ExpectSameAsWhole(SftArguments("whole"), SftArguments("chain"));
  // Random weights end responses as their config.json says, even after they are read again.
  EXPECT_FALSE(std::filesystem::exists(dir_.File("chain/model/generation_config.json")));
}

TEST_F(ResumeChainTest, AStudentWithItsOwnTokenizer) {
  TeacherProcess teacher(dir_, teacher_model_);
  const std::vector<std::string> settings = {Concat("student.model=", WriteTextStudent())};
  ExpectSameAsWhole(DistillArguments(teacher.endpoint(), "whole", settings),
                    DistillArguments(teacher.endpoint(), "chain", settings));
  EXPECT_TRUE(std::filesystem::exists(dir_.File("chain/model/generation_config.json")));
}

TEST_F(ResumeChainTest, AStudentThatTakesOverATokenizer) {
  TeacherProcess teacher(dir_, teacher_model_);
  const std::vector<std::string> settings = {Concat("student.tokenizer=", dir_.File("tokenizer"))};
  ExpectSameAsWhole(DistillArguments(teacher.endpoint(), "whole", settings),
                    DistillArguments(teacher.endpoint(), "chain", settings));
  EXPECT_TRUE(std::filesystem::exists(dir_.File("chain/model/generation_config.json")));
}

}  // namespace
}  // namespace taopd::testing
