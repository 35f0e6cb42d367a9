// A run is continued as the run that it was: what has changed is named, and refused or logged.

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
  // Refuses the change, leaves the run as it is, and goes on when the change is permitted.
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

// A run of bfloat16 weights alone goes on with masters that are made from them.
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
