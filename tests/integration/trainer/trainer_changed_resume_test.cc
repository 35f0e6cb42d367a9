// Tests of resumed runs whose settings or files have changed: every change is named, and refused or
// logged.

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

class ChangedResumeTest : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    ASSERT_TRUE(Trains({"trainer.total_steps=2", "eval.measure=none"}));
  }
  Strings Arguments(const Strings& settings, const std::string& allowed = "") {
    return TrainArguments(
        Joined({"trainer.total_steps=3", "eval.measure=none"}, settings),
        allowed.empty() ? Strings{"--resume"} : Strings{"--resume", "--allow-change", allowed});
  }
  // Moves the first row of the data to its end.
  void RotatePrompts() {
    const std::string prompts = ReadFile(dir_.File("prompts.jsonl"));
    const size_t second = prompts.find('\n') + 1;
    WriteFile(dir_.File("prompts.jsonl"), prompts.substr(second) + prompts.substr(0, second));
  }
  // Expects the change to be refused without touching the run, and the run to continue if the
  // change is allowed.
  void ExpectRefused(const Strings& settings, const std::string& name, const std::string& before,
                     const std::string& after) {
    const auto files = FilesOf(dir_.File("run"));
    ExpectFails(Arguments(settings), 64, name + " = " + after);
    EXPECT_THAT(output_, HasSubstr("the checkpoint's run has " + before));
    EXPECT_THAT(output_, HasSubstr("--allow-change " + name));
    EXPECT_EQ(FilesOf(dir_.File("run")), files);
    EXPECT_TRUE(Runs(Arguments(settings, name)));
    EXPECT_THAT(output_, HasSubstr("changed since the checkpoint, as permitted"));
    EXPECT_EQ(NewestCheckpoint("run"), 3);
  }
};

TEST_F(ChangedResumeTest, ASettingThatDecidesWhatAStepComputes) {
  ExpectFails(Arguments({"optimizer.lr=2e-3"}, "optimizer.lrr"), 64,
              "did you mean \"optimizer.lr\"?");
  ExpectRefused({"optimizer.lr=2e-3"}, "optimizer.lr", "0.001", "0.002");
}

// The responses of later steps that a checkpoint holds are scored again. The teacher may not have
// scored them when the checkpoint is made; then another run is tried.
TEST_F(ChangedResumeTest, TheTemperatureOfTheTeacher) {
  const Strings ahead =
      Words("trainer.async_steps=1 trainer.total_steps=4 trainer.save_every=3 eval.measure=none");
  const std::string dropped = "stored scores of other settings or teachers are dropped step=4";
  for (int i = 0; i == 0 || (i < 20 && output_.find(dropped) == std::string::npos); ++i) {
    ASSERT_TRUE(Trains(ahead, {"--overwrite"}));
    std::filesystem::remove_all(dir_.File("run/checkpoints/step-000004"));
    ASSERT_TRUE(Trains(Joined(ahead, {"teacher.temperature=2"}),
                       {"--resume", "--allow-change", "teacher.temperature"}));
  }
  EXPECT_THAT(output_, HasSubstr(dropped));
  EXPECT_THAT(output_, HasSubstr("of another teacher.temperature"));
}

// A run with only bfloat16 weights continues with master copies that are made from them.
TEST_F(ChangedResumeTest, TheMastersOfTheWeights) {
  ASSERT_TRUE(Trains({"trainer.total_steps=2", "eval.measure=none", "student.dtype=bfloat16",
                      "optimizer.master=none"},
                     {"--overwrite"}));
  ExpectFails(
      Arguments({"student.dtype=bfloat16", "optimizer.master=none", "optimizer.offload=true"}), 64,
      "optimizer.offload = true: the device is a CPU");
  ExpectRefused({"student.dtype=bfloat16"}, "optimizer.master", "\"none\"", "\"float32\"");
}

TEST_F(ChangedResumeTest, RowsOfTheData) {
  RotatePrompts();
  ExpectRefused({}, "data_fingerprint", "", "");
}

TEST_F(ChangedResumeTest, TheTeacher) {
  StartTeacher(dir_.File("student/model"));
  ExpectRefused({}, "teacher_revision", "", "");
}

TEST_F(ChangedResumeTest, TheEvaluationsData) {
  ASSERT_TRUE(Trains({"trainer.total_steps=2"}, {"--overwrite"}));
  std::string rows = ReadFile(dir_.File("pairs.jsonl"));
  WriteFile(dir_.File("pairs.jsonl"), rows + rows.substr(0, rows.find('\n') + 1));
  const Strings settings = {"trainer.total_steps=3"};
  ExpectTrainFails(settings, 64, "data_val_fingerprint = ", {"--resume"});
  EXPECT_TRUE(Trains(settings, {"--resume", "--allow-change", "data_val_fingerprint"}));
}

TEST_F(ChangedResumeTest, RowsThatMoveBetweenWeightedFiles) {
  const std::string prompts = ReadFile(dir_.File("prompts.jsonl"));
  const auto split = [&](size_t num_rows) {
    size_t at = 0;
    for (size_t i = 0; i < num_rows; ++i) at = prompts.find('\n', at) + 1;
    WriteFile(dir_.File("first.jsonl"), prompts.substr(0, at));
    WriteFile(dir_.File("second.jsonl"), prompts.substr(at));
  };
  split(12);
  const Strings settings = {
      Concat("data.train=[", dir_.File("first.jsonl"), ", ", dir_.File("second.jsonl"), "]"),
      "data.train_weights=[0.5, 2]"};
  ASSERT_TRUE(
      Trains(Joined({"trainer.total_steps=2", "eval.measure=none"}, settings), {"--overwrite"}));
  split(10);
  ExpectRefused(settings, "data_fingerprint", "", "");
}

TEST_F(ChangedResumeTest, AllDifferencesAreNamedAtOnce) {
  RotatePrompts();
  StartTeacher(dir_.File("student/model"));
  EXPECT_EQ(Run(Arguments({"optimizer.lr=2e-3", "run.seed=12"})), 64);
  for (const char* name : {"optimizer.lr", "run.seed", "data_fingerprint", "teacher_revision"}) {
    EXPECT_THAT(output_, HasSubstr(Concat("--allow-change ", name, "\n")));
  }
}

// There is nothing to do, and nothing is touched. Not even a teacher is needed.
TEST_F(ChangedResumeTest, AFinishedRunStaysAsItIs) {
  const auto files = FilesOf(dir_.File("run"));
  const Strings settings = {kNobody, "trainer.total_steps=2", "eval.measure=none",
                            "teacher.connect_timeout_s=0.2", "trainer.save_every=1"};
  EXPECT_TRUE(Trains(settings, {"--resume"}));
  EXPECT_THAT(output_, HasSubstr("the run is finished and stays as it is"));
  EXPECT_EQ(FilesOf(dir_.File("run")), files);
  // Without its model it is not finished.
  std::filesystem::remove(dir_.File("run/model/config.json"));
  EXPECT_EQ(Train(settings, {"--resume"}), 69) << output_;
}

TEST_F(ChangedResumeTest, NothingToResume) {
  const Strings settings = {RunDir("new"), "trainer.total_steps=1", "eval.measure=none"};
  ExpectTrainFails(settings, 64, "--resume=auto", {"--resume"});
  EXPECT_EQ(Train(settings, {"--resume=yes"}), 64);
  EXPECT_TRUE(Trains(settings, {"--resume=auto"}));
  EXPECT_THAT(output_, HasSubstr("a new run starts"));
}

// A guard that is switched on later has no rollouts of the first step as a baseline.
TEST_F(ChangedResumeTest, AGuardThatIsSwitchedOnMeasuresFromThere) {
  EXPECT_TRUE(Runs(
      Arguments({"trainer.total_steps=4", "guard.kl_to_start.limit=100", "guard.kl_every=1"})));
  EXPECT_THAT(output_, HasSubstr("policy/kl_to_start is measured from here"));
  EXPECT_GE(LastMetric("run", "policy/kl_to_start"), 0);
}

TEST_F(ChangedResumeTest, MetricsThatAPowerLossHasCut) {
  const std::string metrics = ReadFile(dir_.File("run/metrics.jsonl"));
  std::filesystem::resize_file(dir_.File("run/metrics.jsonl"), metrics.size() - 5);
  EXPECT_TRUE(Runs(Arguments({})));
  EXPECT_THAT(output_, HasSubstr("from_step=2 to_step=2"));
  EXPECT_EQ(Losses("run").size(), 2u) << "of steps 1 and 3";
}

TEST_F(ChangedResumeTest, WhatMayChangeIsLoggedWithBothValues) {
  const std::string copy = dir_.File("copy.jsonl");
  std::filesystem::copy_file(dir_.File("prompts.jsonl"), copy);  // the same rows elsewhere
  EXPECT_TRUE(Runs(Arguments({"trainer.save_every=1", Concat("data.train=[", copy, "]")})));
  EXPECT_THAT(output_,
              HasSubstr("changed since the checkpoint setting=trainer.save_every from=2 to=1"));
  EXPECT_THAT(output_, HasSubstr("setting=trainer.total_steps from=2 to=3"));
  EXPECT_THAT(output_, HasSubstr("setting=data.train"));
}

TEST_F(ChangedResumeTest, PermissionsNeedAResumedRun) {
  ExpectTrainFails({}, 64, "--resume", {"--allow-change", "run.seed"});
}

}  // namespace
}  // namespace taopd::testing
