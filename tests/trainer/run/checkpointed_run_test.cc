// Tests of checkpoints that are written while the student continues to train.
#include <filesystem>

#include "tests/common/dist/rank_threads.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/step/tiny_training.h"
#include "trainer/run/checkpointed_run.h"

namespace taopd::testing {
namespace {

class CheckpointedRunTest : public ::testing::TestWithParam<std::string> {
 protected:
  // Starts a run, or a rank of it, in a directory of its own.
  std::unique_ptr<CheckpointedRun> StartRun(const std::string& name,
                                            ProcessGroup* group = nullptr) {
    const CheckpointedRunOptions options = {.name = name,
                                            .run_dir = dir_.File(name),
                                            .total_steps = 10,
                                            .dtype = GetParam(),
                                            .device = "cpu",
                                            .group = group};
    auto run = std::make_unique<CheckpointedRun>(options);
    StartTinyRun(run.get());
    Learn(run.get());
    return run;
  }
  // Changes every tensor of a checkpoint.
  void Learn(CheckpointedRun* run) {
    at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : run->student().decoder->Parameters()) {
      parameter.mutable_grad().fill_(0.25f * static_cast<float>(1 + run->state().step));
    }
    run->student().optimizer->Update(1e-2, 1.0);
    ++run->state().step;
  }
  void ExpectSameTensors(const std::string& a, const std::string& b) {
    for (const char* file :
         {"model/model.safetensors", "model/config.json", "optimizer.safetensors", "state.json"}) {
      const std::string expected = ReadFile(a + "/" + file);
      EXPECT_FALSE(expected.empty()) << file;
      EXPECT_TRUE(expected == ReadFile(b + "/" + file)) << file << " differs";
    }
  }

  const TempDir dir_;
};

TEST_P(CheckpointedRunTest, WritesWhatTheStudentWasWhenItWasCalled) {
  const auto in_line = StartRun("in_line"), beside = StartRun("beside");
  ASSERT_OK_AND_ASSIGN(const std::string expected, in_line->checkpoints().Save());
  EXPECT_FALSE(beside->checkpoints().TakeFinishedSave(/*waits=*/true).has_value())
      << "nothing was saved yet";
  ASSERT_OK(beside->checkpoints().StartSave());
  Learn(beside.get());
  const auto saved = beside->checkpoints().TakeFinishedSave(/*waits=*/true);
  ASSERT_TRUE(saved.has_value());
  ASSERT_OK(saved->path);
  EXPECT_EQ(saved->step, 1);
  EXPECT_GT(saved->duration, absl::ZeroDuration());
  ExpectSameTensors(expected, *saved->path);
  EXPECT_FALSE(beside->checkpoints().TakeFinishedSave(/*waits=*/true).has_value()) << "taken once";
}

TEST_P(CheckpointedRunTest, OneIsWrittenAtATime) {
  const auto run = StartRun("run");
  ASSERT_OK(run->checkpoints().StartSave());
  Learn(run.get());
  ASSERT_OK(run->checkpoints().StartSave());
  Learn(run.get());
  ASSERT_OK(run->checkpoints().Save());
  for (const char* step : {"step-000002", "step-000003"}) {
    EXPECT_TRUE(std::filesystem::exists(dir_.File("run/checkpoints/") + step + "/manifest.json"));
  }
  EXPECT_FALSE(std::filesystem::exists(dir_.File("run/checkpoints/step-000001"))) << "two are kept";
}

TEST_P(CheckpointedRunTest, RollingBackWaitsForIt) {
  const auto run = StartRun("run");
  ASSERT_OK(run->checkpoints().Save());
  Learn(run.get());
  ASSERT_OK(run->checkpoints().StartSave());
  ASSERT_OK_AND_ASSIGN(const std::string path, run->RollBack(1));
  EXPECT_EQ(run->state().step, 1);
  EXPECT_FALSE(std::filesystem::exists(dir_.File("run/checkpoints/step-000002"))) << "deleted";
}

TEST_P(CheckpointedRunTest, AFailureIsReportedAndTheNextOneIsTried) {
  const auto run = StartRun("run");
  const std::string checkpoints = dir_.File("run/checkpoints");
  std::filesystem::rename(checkpoints, checkpoints + "-away");
  WriteFile(checkpoints, "in the way");
  ASSERT_OK(run->checkpoints().StartSave());
  const auto failed = run->checkpoints().TakeFinishedSave(/*waits=*/true);
  ASSERT_TRUE(failed.has_value());
  EXPECT_FALSE(failed->path.ok());
  std::filesystem::remove(checkpoints);
  std::filesystem::rename(checkpoints + "-away", checkpoints);
  ASSERT_OK(run->checkpoints().StartSave());
  const auto saved = run->checkpoints().TakeFinishedSave(/*waits=*/true);
  ASSERT_TRUE(saved.has_value());
  EXPECT_OK(saved->path);
}

TEST_P(CheckpointedRunTest, OneThatIsContinuedAfterItsEndSaysSoAndKnowsWhichFactsHaveChanged) {
  auto run = StartRun("run");
  ASSERT_OK(run->CheckFacts({{"teacher_revision", "a"}, {"data_fingerprint", "d"}}));
  ASSERT_OK(run->checkpoints().Save());
  ASSERT_OK(run->Export());
  const CheckpointedRunOptions options = run->options();
  run.reset();  // unlocks the directory
  CheckpointedRun resumed(options);
  ASSERT_OK(resumed.Start({.resume = true, .allow_change = {"teacher_revision"}}, {}));
  ASSERT_OK(resumed.CheckFacts({{"teacher_revision", "b"}, {"data_fingerprint", "d"}}));
  ASSERT_OK_AND_ASSIGN(const auto changed, resumed.ChangedSinceCheckpoint());
  EXPECT_EQ(changed, std::vector<std::string>{"teacher_revision"});
  const auto is_continued = [&] { return std::filesystem::exists(dir_.File("run/continued")); };
  EXPECT_FALSE(is_continued());
  ASSERT_OK(resumed.OpenOutput());
  EXPECT_TRUE(is_continued());
  ASSERT_OK(resumed.Export());
  EXPECT_FALSE(is_continued());
}

// Two ranks write, each its part of the optimizer.
TEST_P(CheckpointedRunTest, RanksWriteTheSameBesideAsInLine) {
  for (const char* name : {"in_line", "beside"}) {
    OnRanks(2, ProcessGroupOptions(), [&](ProcessGroup& group) {
      const auto run = StartRun(name, &group);
      if (std::string(name) == "in_line") {
        EXPECT_OK(run->checkpoints().Save());
      } else {
        ASSERT_OK(run->checkpoints().StartSave());
        Learn(run.get());
        const auto saved = run->checkpoints().TakeFinishedSave(/*waits=*/true);
        ASSERT_TRUE(saved.has_value());
        EXPECT_OK(saved->path);
      }
      group.Leave();
    });
  }
  const std::string in_line = dir_.File("in_line/checkpoints/step-000001");
  int num_files = 0, num_shards = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(in_line)) {
    if (!entry.is_regular_file() || entry.path().filename() == "manifest.json") continue;
    const std::string name = std::filesystem::relative(entry.path(), in_line);
    ++num_files;
    num_shards += name.starts_with("optimizer/") ? 1 : 0;
    EXPECT_TRUE(ReadFile(entry.path()) ==
                ReadFile(dir_.File("beside/checkpoints/step-000001/" + name)))
        << name;
  }
  EXPECT_GE(num_shards, 2);
  EXPECT_GT(num_files, num_shards);
}

TEST(CheckpointedRunRanksTest, ARankThatIsLostDuringTheStartHasACodeOfItsOwn) {
  const TempDir dir;
  OnRanks(2, ProcessGroupOptions(), [&](ProcessGroup& group) {
    const absl::Status own = group.AgreeOnStatus(DataLoss("a torn file"));
    EXPECT_EQ(ExitCodeOf(BadData(own)), kExitData) << "the error of a rank, not of the group";
    EXPECT_OK(Barrier(group));
    if (group.rank() == 1) return;  // its connections end as those of a killed process do
    CheckpointedRun run({.run_dir = dir.File("run"), .device = "cpu", .group = &group});
    EXPECT_EQ(ExitCodeOf(run.Start(StartMode(), {})), kExitUnavailable);
    for (const absl::Status& failure : {group.health(), Barrier(group)}) {
      EXPECT_EQ(ExitCodeOf(failure), kExitUnavailable) << "without a code";
      EXPECT_EQ(ExitCodeOf(BadModel(Annotate(failure, "student.model"))), kExitUnavailable);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CheckpointedRunTest, ::testing::Values("float32", "bfloat16"));

}  // namespace
}  // namespace taopd::testing
