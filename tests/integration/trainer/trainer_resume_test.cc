// A run that is killed or stopped and resumed ends with the same bytes as one that was left alone.

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

constexpr int kSteps = 40;

class TrainerResumeTest : public TrainerTest {
 protected:
  std::vector<std::string> Settings(const std::string& run) {
    return {Concat("trainer.total_steps=", kSteps), "trainer.save_every=3", "trainer.eval_every=7",
            Concat("run.dir=", dir_.File(run))};
  }
  void ExpectSameResult(const std::string& a, const std::string& b) {
    const std::string last = Concat("/checkpoints/step-0000", kSteps);
    for (const char* file : {"/model/model.safetensors", "/optimizer.safetensors"}) {
      EXPECT_EQ(FileHash(dir_.File(a) + last + file), FileHash(dir_.File(b) + last + file)) << file;
    }
    EXPECT_EQ(Losses(dir_.File(a)), Losses(dir_.File(b)));
    EXPECT_EQ(Losses(dir_.File(a)).size(), static_cast<size_t>(kSteps));
  }
};

TEST_F(TrainerResumeTest, KilledAtRandomMoments) {
  TeacherProcess teacher(dir_, teacher_model_);
  std::string output;
  const absl::Time start = absl::Now();
  ASSERT_EQ(Train(teacher.endpoint(), &output, Settings("whole")), 0) << output;
  const absl::Duration whole = absl::Now() - start;

  RandomStream random(absl::ToUnixNanos(start));
  int kills = 0;
  for (int attempt = 0; kills < 5 && attempt < 50; ++attempt) {
    std::vector<std::string> arguments =
        TrainArguments(teacher.endpoint(), Settings("killed"), {"--resume"});
    arguments.insert(arguments.begin(), BinaryPath("taopd-trainer"));
    Process trainer(arguments, dir_.File("killed.log"));
    // Anywhere between the first instant and what a third of the whole run takes.
    absl::SleepFor(whole * (random.NextUniform() / 3));
    if (!trainer.running()) break;
    trainer.Signal(SIGKILL);
    EXPECT_EQ(trainer.Wait(), 128 + SIGKILL);
    ++kills;
  }
  EXPECT_EQ(kills, 5);
  ASSERT_EQ(Train(teacher.endpoint(), &output, Settings("killed"), {"--resume"}), 0) << output;
  ExpectSameResult("killed", "whole");
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
