// Tests of resumed runs whose settings or files have changed: every change is named, and refused or
// logged.

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

using ::testing::HasSubstr;

class ChangedResumeTest : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    teacher_.emplace(dir_, teacher_model_);
    std::string output;
    ASSERT_EQ(Train(teacher_->endpoint(), &output, {"trainer.total_steps=2", "eval.measure=none"}),
              0)
        << output;
  }
  int Resume(const std::vector<std::string>& settings, std::string* output,
             const std::vector<std::string>& allow_change = {}) {
    std::vector<std::string> all = {"trainer.total_steps=3", "eval.measure=none"};
    all.insert(all.end(), settings.begin(), settings.end());
    std::vector<std::string> flags = {"--resume"};
    for (const std::string& name : allow_change) {
      flags.push_back("--allow-change");
      flags.push_back(name);
    }
    return Train(teacher_->endpoint(), output, all, flags);
  }
  // Expects the change to be refused without touching the run, and the run to continue if the
  // change is allowed.
  void ExpectRefused(const std::vector<std::string>& settings, const std::string& name,
                     const std::string& before, const std::string& after) {
    const auto files = FilesOf(dir_.File("run"));
    std::string output;
    EXPECT_EQ(Resume(settings, &output), 64) << output;
    EXPECT_THAT(output, HasSubstr(name + " = " + after));
    EXPECT_THAT(output, HasSubstr("the checkpoint's run has " + before));
    EXPECT_THAT(output, HasSubstr("--allow-change " + name));
    EXPECT_EQ(FilesOf(dir_.File("run")), files);
    EXPECT_EQ(Resume(settings, &output, {name}), 0) << output;
    EXPECT_THAT(output, HasSubstr("changed since the checkpoint, as permitted"));
    EXPECT_EQ(NewestCheckpoint("run"), 3);
  }
  std::optional<TeacherProcess> teacher_;
};

TEST_F(ChangedResumeTest, ASettingThatDecidesWhatAStepComputes) {
  std::string output;
  EXPECT_EQ(Resume({"optimizer.lr=2e-3"}, &output, {"optimizer.lrr"}), 64);
  EXPECT_THAT(output, HasSubstr("did you mean \"optimizer.lr\"?"));
  ExpectRefused({"optimizer.lr=2e-3"}, "optimizer.lr", "0.001", "0.002");
}

TEST_F(ChangedResumeTest, TheSeedAndTheObjective) {
  std::string output;
  EXPECT_EQ(Resume({"run.seed=12"}, &output), 64);
  EXPECT_THAT(output, HasSubstr("run.seed = 12: the checkpoint's run has 11"));
  ExpectRefused({"objective.name=jsd"}, "objective.name", "\"ta_opd\"", "\"jsd\"");
}

// A run with only bfloat16 weights continues with master copies that are made from them.
TEST_F(ChangedResumeTest, TheMastersOfTheWeights) {
  std::string output;
  ASSERT_EQ(Train(teacher_->endpoint(), &output,
                  {"trainer.total_steps=2", "eval.measure=none", "student.dtype=bfloat16",
                   "optimizer.master=none"},
                  {"--overwrite"}),
            0)
      << output;
  EXPECT_EQ(Resume({"student.dtype=bfloat16", "optimizer.master=none", "optimizer.offload=true"},
                   &output),
            64);
  EXPECT_THAT(output, HasSubstr("optimizer.offload = true: the device is a CPU"));
  ExpectRefused({"student.dtype=bfloat16"}, "optimizer.master", "\"none\"", "\"float32\"");
}

TEST_F(ChangedResumeTest, RowsOfTheData) {
  const std::string prompts = ReadFile(dir_.File("prompts.jsonl"));
  const size_t second = prompts.find('\n') + 1;
  WriteFile(dir_.File("prompts.jsonl"), prompts.substr(second) + prompts.substr(0, second));
  ExpectRefused({}, "data_fingerprint", "", "");
}

TEST_F(ChangedResumeTest, TheTeacher) {
  teacher_.reset();
  teacher_.emplace(dir_, dir_.File("student/model"));
  ExpectRefused({}, "teacher_revision", "", "");
}

TEST_F(ChangedResumeTest, TheEvaluationsData) {
  std::string output;
  ASSERT_EQ(Train(teacher_->endpoint(), &output, {"trainer.total_steps=2"}, {"--overwrite"}), 0)
      << output;
  const auto resume = [&](const std::vector<std::string>& flags) {
    return Train(teacher_->endpoint(), &output, {"trainer.total_steps=3"}, flags);
  };
  std::string rows = ReadFile(dir_.File("pairs.jsonl"));
  WriteFile(dir_.File("pairs.jsonl"), rows + rows.substr(0, rows.find('\n') + 1));
  EXPECT_EQ(resume({"--resume"}), 64);
  EXPECT_THAT(output, HasSubstr("data_val_fingerprint = "));
  EXPECT_EQ(resume({"--resume", "--allow-change", "data_val_fingerprint"}), 0) << output;
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
  const std::vector<std::string> settings = {
      Concat("data.train=[", dir_.File("first.jsonl"), ", ", dir_.File("second.jsonl"), "]"),
      "data.train_weights=[0.5, 2]"};
  std::vector<std::string> first = {"trainer.total_steps=2", "eval.measure=none"};
  first.insert(first.end(), settings.begin(), settings.end());
  std::string output;
  ASSERT_EQ(Train(teacher_->endpoint(), &output, first, {"--overwrite"}), 0) << output;
  split(10);
  ExpectRefused(settings, "data_fingerprint", "", "");
}

TEST_F(ChangedResumeTest, AllDifferencesAreNamedAtOnce) {
  const std::string prompts = ReadFile(dir_.File("prompts.jsonl"));
  const size_t second = prompts.find('\n') + 1;
  WriteFile(dir_.File("prompts.jsonl"), prompts.substr(second) + prompts.substr(0, second));
  teacher_.reset();
  teacher_.emplace(dir_, dir_.File("student/model"));
  std::string output;
  EXPECT_EQ(Resume({"optimizer.lr=2e-3", "run.seed=12"}, &output), 64);
  for (const char* name : {"optimizer.lr", "run.seed", "data_fingerprint", "teacher_revision"}) {
    EXPECT_THAT(output, HasSubstr(Concat("--allow-change ", name, "\n")));
  }
}

// There is nothing to do, and nothing is touched. Not even a teacher is needed.
TEST_F(ChangedResumeTest, AFinishedRunStaysAsItIs) {
  const auto files = FilesOf(dir_.File("run"));
  teacher_.reset();
  std::string output;
  const std::vector<std::string> settings = {"trainer.total_steps=2", "eval.measure=none",
                                             "teacher.connect_timeout_s=0.2",
                                             "trainer.save_every=1"};
  EXPECT_EQ(Train("grpc://127.0.0.1:1", &output, settings, {"--resume"}), 0) << output;
  EXPECT_THAT(output, HasSubstr("the run is finished and stays as it is"));
  EXPECT_EQ(FilesOf(dir_.File("run")), files);
  // Without its model it is not finished.
  std::filesystem::remove(dir_.File("run/model/config.json"));
  EXPECT_EQ(Train("grpc://127.0.0.1:1", &output, settings, {"--resume"}), 69) << output;
}

TEST_F(ChangedResumeTest, NothingToResume) {
  std::string output;
  const std::vector<std::string> settings = {Concat("run.dir=", dir_.File("new")),
                                             "trainer.total_steps=1", "eval.measure=none"};
  EXPECT_EQ(Train(teacher_->endpoint(), &output, settings, {"--resume"}), 64);
  EXPECT_THAT(output, HasSubstr("--resume=auto"));
  EXPECT_EQ(Train(teacher_->endpoint(), &output, settings, {"--resume=yes"}), 64);
  EXPECT_EQ(Train(teacher_->endpoint(), &output, settings, {"--resume=auto"}), 0) << output;
  EXPECT_THAT(output, HasSubstr("a new run starts"));
}

// A guard that is switched on later has no rollouts of the first step as a baseline.
TEST_F(ChangedResumeTest, AGuardThatIsSwitchedOnMeasuresFromThere) {
  std::string output;
  EXPECT_EQ(
      Resume({"trainer.total_steps=4", "guard.kl_to_start.limit=100", "guard.kl_every=1"}, &output),
      0)
      << output;
  EXPECT_THAT(output, HasSubstr("policy/kl_to_start is measured from here"));
  EXPECT_GE(LastMetric("run", "policy/kl_to_start"), 0);
}

TEST_F(ChangedResumeTest, MetricsThatAPowerLossHasCut) {
  const std::string metrics = ReadFile(dir_.File("run/metrics.jsonl"));
  std::filesystem::resize_file(dir_.File("run/metrics.jsonl"), metrics.size() - 5);
  std::string output;
  EXPECT_EQ(Resume({}, &output), 0) << output;
  EXPECT_THAT(output, HasSubstr("from_step=2 to_step=2"));
  EXPECT_EQ(Losses(dir_.File("run")).size(), 2u) << "of steps 1 and 3";
}

TEST_F(ChangedResumeTest, WhatMayChangeIsLoggedWithBothValues) {
  const std::string copy = dir_.File("copy.jsonl");
  std::filesystem::copy_file(dir_.File("prompts.jsonl"), copy);  // the same rows elsewhere
  std::string output;
  EXPECT_EQ(Resume({"trainer.save_every=1", Concat("data.train=[", copy, "]")}, &output), 0)
      << output;
  EXPECT_THAT(output,
              HasSubstr("changed since the checkpoint setting=trainer.save_every from=2 to=1"));
  EXPECT_THAT(output, HasSubstr("setting=trainer.total_steps from=2 to=3"));
  EXPECT_THAT(output, HasSubstr("setting=data.train"));
}

TEST_F(ChangedResumeTest, PermissionsNeedAResumedRun) {
  std::string output;
  EXPECT_EQ(Train(teacher_->endpoint(), &output, {}, {"--allow-change", "run.seed"}), 64);
  EXPECT_THAT(output, HasSubstr("--resume"));
}

}  // namespace
}  // namespace taopd::testing
