// Memory runs out at any moment of a run: while it loads, rolls out, scores, trains, evaluates or
// saves. The run says so with its own exit code and the memory plan, and nothing that is saved is
// lost.
#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

using ::testing::HasSubstr;

class TrainerOutOfMemoryTest : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    teacher_.emplace(dir_, teacher_model_);
  }

  // Trains to the end, or until the tensor number `failing` finds no memory.
  int TrainWithout(int64_t failing, const std::string& run, std::string* output) {
    std::vector<std::string> arguments = {
        "/usr/bin/env", "LD_PRELOAD=" + TestLibraryPath("failing_allocation"),
        Concat("TAOPD_FAILING_ALLOCATION=", failing),
        "TAOPD_ALLOCATIONS_PATH=" + dir_.File("allocations"), BinaryPath("taopd-trainer")};
    for (const std::string& argument : Arguments(run)) arguments.push_back(argument);
    return RunProgram(arguments, dir_.File("command.log"), output, absl::Seconds(120));
  }
  std::vector<std::string> Arguments(const std::string& run) {
    return TrainArguments(teacher_->endpoint(),
                          {Concat("run.dir=", dir_.File(run)), "trainer.eval_every=2",
                           "trainer.async_save=off", "trainer.total_steps=4"},
                          {"--resume=auto"});
  }

  std::optional<TeacherProcess> teacher_;
};

// TAOPD_MEMORY_CASES: how many moments. Every case that runs out must be one of a known phase.
TEST_F(TrainerOutOfMemoryTest, EndsWithItsOwnCodeAndARestartEndsWithTheSameWeights) {
  std::string output;
  ASSERT_EQ(TrainWithout(0, "whole", &output), 0) << output;
  const int64_t num_allocations = std::atoll(ReadFile(dir_.File("allocations")).c_str());
  ASSERT_GT(num_allocations, 1000) << "the library is not asked";
  const auto whole = FilesOf(dir_.File("whole/model"));
  const char* text = std::getenv("TAOPD_MEMORY_CASES");
  const int64_t count = text != nullptr ? std::atoll(text) : 10;
  RandomStream random(7);
  for (int64_t i = 0; i < count; ++i) {
    // One in each of equal parts of the run.
    const int64_t failing =
        1 + num_allocations * i / count +
        static_cast<int64_t>(random.NextBelow(static_cast<uint64_t>(num_allocations / count)));
    const std::string run = Concat("run-", i);
    SCOPED_TRACE(Concat("allocation ", failing, " of ", num_allocations));
    const int code = TrainWithout(failing, run, &output);
    if (code != 0) {
      EXPECT_EQ(code, 71) << output;
      EXPECT_THAT(output, HasSubstr("out of memory"));
      const bool has_begun = output.find("started run=") != std::string::npos;
      if (has_begun) EXPECT_THAT(output, HasSubstr("The plan was:"));
      const size_t saved = output.find("the state after step ");
      if (saved != std::string::npos) {
        EXPECT_EQ(NewestCheckpoint(run), std::atoll(output.c_str() + saved + 21)) << output;
      }
      std::printf("%s\n", output.substr(output.rfind("taopd-trainer: "), 200).c_str());
      ASSERT_EQ(Run(Arguments(run), &output), 0) << output;
    }
    EXPECT_EQ(FilesOf(dir_.File(run + "/model")), whole) << output;
  }
}

}  // namespace
}  // namespace taopd::testing
