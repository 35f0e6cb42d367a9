// Tests of runs whose teacher sees prompts of its own, and of runs whose student is the teacher.

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

class TrainerSelfTeacherTest : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    // Every third row has no prompt for the teacher.
    std::string rows;
    int64_t number = 0;
    for (nlohmann::json& row : Lines("prompts.jsonl")) {
      if (number % 3 > 0) row["hint_ids"] = {1, 9 + number, 77, 30};
      rows += row.dump() + "\n";
      ++number;
    }
    WriteFile(dir_.File("prompts.jsonl"), rows);
  }
  // The student is its own teacher, unless `more` says otherwise.
  Strings Arguments(const std::string& run, const Strings& more, const Strings& flags = {}) {
    return TrainArguments(Joined({"teacher.kind=self", RunDir(run)}, more), flags);
  }
  void ExpectSameRun(const std::string& a, const std::string& b) {
    EXPECT_EQ(WeightsOf(a), WeightsOf(b));
    EXPECT_EQ(Losses(a).size(), Losses(b).size());
    EXPECT_EQ(LastMetric(a, "eval/kl_to_teacher"), LastMetric(b, "eval/kl_to_teacher"));
  }
  const Strings hints_ = {"data.teacher_prompt_key=hint", "data.teacher_prompt_missing=plain"};
};

// The exact tail, candidates, the entropy and dense log-probs.
TEST_F(TrainerSelfTeacherTest, TheStartWeightsScoreAsAServerThatServesThem) {
  StartTeacher(dir_.File("student/model"));
  const std::string server = FromTeacher();
  const std::vector<Strings> cases = {
      {"objective.support=union"}, {"objective.name=entropy_aware"}, {"objective.name=full"}};
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(cases[i][0]);
    Strings settings = Joined(Joined(hints_, cases[i]), {"trainer.total_steps=3"});
    const std::string a = Concat("self-", i), b = Concat("server-", i);
    ASSERT_TRUE(Runs(Arguments(a, settings)));
    settings.push_back("teacher.kind=server");
    settings.push_back(server);
    ASSERT_TRUE(Runs(Arguments(b, settings)));
    ExpectSameRun(a, b);
    EXPECT_EQ(Losses(a), Losses(b));
    EXPECT_EQ(LastMetric(a, "data/teacher_prompt_missing"), 8);
  }
  // The teacher's prompt matters.
  ASSERT_TRUE(Runs(Arguments("plain", {"objective.support=union", "trainer.total_steps=3"})));
  EXPECT_NE(Losses("plain"), Losses("self-0"));
}

TEST_F(TrainerSelfTeacherTest, RanksAndRestartsChangeNothing) {
  for (const Strings& weights : {Strings{"teacher.weights=ema", "teacher.ema=0.5"},
                                 {"teacher.weights=start", "teacher.refresh_every=3"},
                                 {"teacher.weights=live"}}) {
    SCOPED_TRACE(weights.back());
    const Strings settings = Joined(Joined(hints_, weights), {"dist.deterministic=true"});
    const std::string name = weights.back();
    const auto steps = [&](int64_t count) {
      return Joined(settings, {Concat("trainer.total_steps=", count)});
    };
    ASSERT_TRUE(Runs(Arguments("one" + name, steps(6))));
    ASSERT_TRUE(Runs(Arguments("two" + name, steps(6)), 2));
    ExpectSameRun("two" + name, "one" + name);
    // From two ranks to one, within the time of an average and of a refresh.
    ASSERT_TRUE(Runs(Arguments("moved" + name, steps(2)), 2));
    ASSERT_TRUE(Runs(Arguments("moved" + name, steps(4), {"--resume"})));
    ASSERT_TRUE(Runs(Arguments("moved" + name, steps(6), {"--resume"}), 2));
    ExpectSameRun("moved" + name, "one" + name);
  }
  // The weights matter.
  EXPECT_NE(Losses("oneteacher.ema=0.5"), Losses("oneteacher.weights=live"));
  EXPECT_NE(Losses("oneteacher.refresh_every=3"), Losses("oneteacher.weights=live"));
}

TEST_F(TrainerSelfTeacherTest, AServerAndTheStudentTeachBySource) {
  std::string rows;
  for (nlohmann::json& row : Lines("prompts.jsonl")) {
    row["data_source"] = rows.size() % 2 > 0 ? "a" : "b";
    rows += row.dump() + "\n";
  }
  WriteFile(dir_.File("prompts.jsonl"), rows);
  const std::string teachers = Concat("teachers=[{name: far, endpoints: [\"", teacher().endpoint(),
                                      "\"], sources: [a]}, {name: own, kind: self}]");
  ASSERT_TRUE(Runs(Arguments("mixed", {"teacher.kind=server", "teacher.weights=live", teachers,
                                       "trainer.total_steps=2", "eval.measure=none"})));
  EXPECT_EQ(Losses("mixed").size(), 2U);
}

TEST_F(TrainerSelfTeacherTest, WhatCannotBeIsRefusedBeforeTheFirstStep) {
  const auto refused = [&](const Strings& settings, int code, const std::string& says) {
    ExpectFails(Arguments("refused", settings), code, says);
    EXPECT_FALSE(Exists("refused/metrics.jsonl"));
  };
  refused({"data.teacher_prompt_key=hint"}, 65, "has no \"hint\" for the teacher's prompt");
  refused({"data.teacher_prompt_key=hint", "data.teacher_prompt_missing=skip",
           "data.max_teacher_prompt_length=3"},
          65, "the teacher's prompt has 4 tokens, more than max_teacher_prompt_length");
  refused({"data.teacher_prompt_key=hint", "data.teacher_prompt_missing=plain",
           "data.max_teacher_prompt_length=1000", "eval.measure=none"},
          64, "exceeds the student's max_position_embeddings 128");
  refused({"data.teacher_prompt_template={prompt} {hint}"}, 65, "token ids");
  const Strings config = {"--config", dir_.File("train.yaml"), "--set", "teacher.kind=self"};
  ExpectFails(Joined({"eval", "--set", "teacher.weights=ema"}, config), 64,
              "only a run has these weights");
  ExpectFails(
      Joined({"score", "--cache-dir", dir_.File("cache"), "--input", dir_.File("pairs.jsonl")},
             config),
      64, "teacher.cache_dir needs teacher.kind = server");
}

// The cache tells what is sent.
TEST_F(TrainerSelfTeacherTest, ScoreSendsTheTeachersPrompt) {
  StartTeacher(dir_.File("student/model"));
  std::string rows;
  for (int i = 0; i < 6; ++i) {
    rows += Concat("{\"prompt_ids\":[1,", 9 + i, "],\"response_ids\":[5,7]",
                   i % 3 > 0 ? Concat(",\"hint_ids\":[1,", 9 + i, ",77,30]") : "", "}\n");
  }
  WriteFile(dir_.File("rows.jsonl"), rows);
  const auto score = [&](const Strings& settings, const std::string& file) {
    return With({"score", "--config", dir_.File("train.yaml"), "--teacher", teacher().endpoint(),
                 "--cache-dir", dir_.File("cache"), "--input", dir_.File(file)},
                settings);
  };
  const auto says = [&](const std::string& text) {
    EXPECT_NE(output_.find(text), std::string::npos) << output_;
  };
  ASSERT_TRUE(Runs(score({}, "rows.jsonl")));
  says("from_teacher\t6\n");
  EXPECT_EQ(output_.find("teacher_prompt_missing"), std::string::npos) << output_;
  ASSERT_TRUE(Runs(score(hints_, "rows.jsonl")));
  says("sequences\t6\n");
  says("from_cache\t2\nfrom_teacher\t4\nteacher_prompt_missing\t2\n");
  // The rows without a hint are left out, and the others are in the cache.
  ASSERT_TRUE(Runs(
      score({"data.teacher_prompt_key=hint", "data.teacher_prompt_missing=skip"}, "rows.jsonl")));
  says("sequences\t4\n");
  says("from_cache\t4\nfrom_teacher\t0\nteacher_prompt_missing\t2\n");
  // These are the sequences that the teacher scores: the hint's ids in front of the response's.
  std::string whole;
  for (int i = 0; i < 6; ++i) {
    if (i % 3 > 0)
      whole += Concat("{\"prompt_ids\":[1,", 9 + i, ",77,30],\"response_ids\":[5,7]}\n");
  }
  WriteFile(dir_.File("whole.jsonl"), whole);
  ASSERT_TRUE(Runs(score({}, "whole.jsonl")));
  says("from_cache\t4\n");
  ExpectFails(score({"data.teacher_prompt_key=hint"}, "rows.jsonl"), 65, "rows.jsonl:1");
  says("has no \"hint\" for the teacher's prompt");
}

// The distance of a model to itself is zero; its start is a teacher of it, too.
TEST_F(TrainerSelfTeacherTest, AnEvaluationTakesTheStartAndTheLiveWeights) {
  for (const char* weights : {"start", "live"}) {
    // Both sides compute the same numbers in float32.
    EXPECT_NEAR(DistanceToTeacher({"teacher.kind=self", Concat("teacher.weights=", weights)}), 0.0,
                1e-5);
  }
}

}  // namespace
}  // namespace taopd::testing
