// Tests of runs whose teacher sees prompts of its own, and of runs whose student is the teacher.

#include <sstream>

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
    std::istringstream lines(ReadFile(dir_.File("prompts.jsonl")));
    for (std::string line; std::getline(lines, line); ++number) {
      line.pop_back();
      if (number % 3 > 0) line += Concat(",\"hint_ids\":[1,", 9 + number, ",77,30]");
      rows += line + "}\n";
    }
    WriteFile(dir_.File("prompts.jsonl"), rows);
  }
  // Runs `train` on `ranks` ranks. The student is its own teacher, unless `more` says otherwise.
  int TrainSelf(const std::string& run, const std::vector<std::string>& more, std::string* output,
                int64_t ranks = 1, bool resumes = false) {
    std::vector<std::string> arguments = {BinaryPath("taopd-trainer")};
    if (ranks > 1) {
      const std::vector<std::string> launch = {"launch", "--nproc", Concat(ranks), "--"};
      arguments.insert(arguments.end(), launch.begin(), launch.end());
    }
    const std::vector<std::string> train = {"train", "--config", dir_.File("train.yaml")};
    arguments.insert(arguments.end(), train.begin(), train.end());
    if (resumes) arguments.push_back("--resume");
    std::vector<std::string> settings = {"teacher.kind=self", Concat("run.dir=", dir_.File(run))};
    settings.insert(settings.end(), more.begin(), more.end());
    for (const std::string& setting : settings) {
      arguments.push_back("--set");
      arguments.push_back(setting);
    }
    return RunProgram(arguments, dir_.File("command.log"), output, absl::Seconds(120));
  }
  std::string WeightsOf(const std::string& run) {
    return FileHash(dir_.File(run + "/model/model.safetensors"));
  }
  void ExpectSameRun(const std::string& a, const std::string& b) {
    EXPECT_EQ(WeightsOf(a), WeightsOf(b));
    EXPECT_EQ(Losses(dir_.File(a)).size(), Losses(dir_.File(b)).size());
    EXPECT_EQ(LastMetric(a, "eval/kl_to_teacher"), LastMetric(b, "eval/kl_to_teacher"));
  }
  const std::vector<std::string> hints_ = {"data.teacher_prompt_key=hint",
                                           "data.teacher_prompt_missing=plain"};
};

// The exact tail, candidates, the entropy and dense log-probs.
TEST_F(TrainerSelfTeacherTest, TheStartWeightsScoreAsAServerThatServesThem) {
  TeacherProcess teacher(dir_, dir_.File("student/model"));
  const std::string server = Concat("teacher.endpoints=[", teacher.endpoint(), "]");
  const std::vector<std::vector<std::string>> cases = {
      {"objective.support=union"}, {"objective.name=entropy_aware"}, {"objective.name=full"}};
  std::string output;
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(cases[i][0]);
    std::vector<std::string> settings = hints_;
    settings.insert(settings.end(), cases[i].begin(), cases[i].end());
    settings.push_back("trainer.total_steps=3");
    const std::string a = Concat("self-", i), b = Concat("server-", i);
    ASSERT_EQ(TrainSelf(a, settings, &output), 0) << output;
    settings.push_back("teacher.kind=server");
    settings.push_back(server);
    ASSERT_EQ(TrainSelf(b, settings, &output), 0) << output;
    ExpectSameRun(a, b);
    EXPECT_EQ(Losses(dir_.File(a)), Losses(dir_.File(b)));
    EXPECT_EQ(LastMetric(a, "data/teacher_prompt_missing"), 8);
  }
  // The teacher's prompt matters.
  ASSERT_EQ(TrainSelf("plain", {"objective.support=union", "trainer.total_steps=3"}, &output), 0)
      << output;
  EXPECT_NE(Losses(dir_.File("plain")), Losses(dir_.File("self-0")));
}

TEST_F(TrainerSelfTeacherTest, RanksAndRestartsChangeNothing) {
  std::string output;
  for (const std::vector<std::string>& weights :
       {std::vector<std::string>{"teacher.weights=ema", "teacher.ema=0.5"},
        {"teacher.weights=start", "teacher.refresh_every=3"},
        {"teacher.weights=live"}}) {
    SCOPED_TRACE(weights.back());
    std::vector<std::string> settings = hints_;
    settings.insert(settings.end(), weights.begin(), weights.end());
    settings.push_back("dist.deterministic=true");
    const std::string name = weights.back();
    const auto steps = [&](int64_t count) {
      std::vector<std::string> all = settings;
      all.push_back(Concat("trainer.total_steps=", count));
      return all;
    };
    ASSERT_EQ(TrainSelf("one" + name, steps(6), &output), 0) << output;
    ASSERT_EQ(TrainSelf("two" + name, steps(6), &output, 2), 0) << output;
    ExpectSameRun("two" + name, "one" + name);
    // From two ranks to one, within the time of an average and of a refresh.
    ASSERT_EQ(TrainSelf("moved" + name, steps(2), &output, 2), 0) << output;
    ASSERT_EQ(TrainSelf("moved" + name, steps(4), &output, 1, true), 0) << output;
    ASSERT_EQ(TrainSelf("moved" + name, steps(6), &output, 2, true), 0) << output;
    ExpectSameRun("moved" + name, "one" + name);
  }
  // The weights matter.
  EXPECT_NE(Losses(dir_.File("oneteacher.ema=0.5")), Losses(dir_.File("oneteacher.weights=live")));
  EXPECT_NE(Losses(dir_.File("oneteacher.refresh_every=3")),
            Losses(dir_.File("oneteacher.weights=live")));
}

TEST_F(TrainerSelfTeacherTest, AServerAndTheStudentTeachBySource) {
  TeacherProcess teacher(dir_, teacher_model_);
  std::string rows;
  std::istringstream lines(ReadFile(dir_.File("prompts.jsonl")));
  for (std::string line; std::getline(lines, line);) {
    line.pop_back();
    rows += line + ",\"data_source\":\"" + (rows.size() % 2 > 0 ? "a" : "b") + "\"}\n";
  }
  WriteFile(dir_.File("prompts.jsonl"), rows);
  std::string output;
  ASSERT_EQ(TrainSelf("mixed",
                      {"teacher.kind=server", "teacher.weights=live", "trainer.total_steps=2",
                       "eval.measure=none",
                       Concat("teachers=[{name: far, endpoints: [\"", teacher.endpoint(),
                              "\"], sources: [a]}, {name: own, kind: self}]")},
                      &output),
            0)
      << output;
  EXPECT_EQ(Losses(dir_.File("mixed")).size(), 2U);
}

TEST_F(TrainerSelfTeacherTest, WhatCannotBeIsRefusedBeforeTheFirstStep) {
  const auto refused = [&](const std::vector<std::string>& settings, int code,
                           const std::string& says) {
    std::string output;
    EXPECT_EQ(TrainSelf("refused", settings, &output), code) << output;
    EXPECT_NE(output.find(says), std::string::npos) << output;
    EXPECT_FALSE(std::filesystem::exists(dir_.File("refused/metrics.jsonl")));
  };
  refused({"data.teacher_prompt_key=hint"}, 65, "has no \"hint\" for the teacher's prompt");
  refused({"data.teacher_prompt_key=hint", "data.teacher_prompt_missing=skip",
           "data.max_teacher_prompt_length=3"},
          65, "the teacher's prompt has 4 tokens, more than max_teacher_prompt_length");
  refused({"data.teacher_prompt_key=hint", "data.teacher_prompt_missing=plain",
           "data.max_teacher_prompt_length=1000", "eval.measure=none"},
          64, "exceeds the student's max_position_embeddings 128");
  refused({"data.teacher_prompt_template={prompt} {hint}"}, 65, "token ids");
  refused({"teacher.weights=best"}, 64, "must be one of start, ema, live");
  refused({"teacher.ema=1", "teacher.weights=ema"}, 64, "must be in [0, 1)");
  refused({"teacher.endpoints=[\"grpc://127.0.0.1:9\"]"}, 64,
          "teacher.endpoints: is for servers, and teacher.kind is self");
  std::string output;
  EXPECT_EQ(Run({"eval", "--config", dir_.File("train.yaml"), "--set", "teacher.kind=self", "--set",
                 "teacher.weights=ema"},
                &output),
            64);
  EXPECT_NE(output.find("only a run has these weights"), std::string::npos) << output;
  EXPECT_EQ(Run({"score", "--config", dir_.File("train.yaml"), "--set", "teacher.kind=self",
                 "--cache-dir", dir_.File("cache"), "--input", dir_.File("pairs.jsonl")},
                &output),
            64);
  EXPECT_NE(output.find("teacher.cache_dir: is for servers"), std::string::npos) << output;
}

// The cache tells what is sent.
TEST_F(TrainerSelfTeacherTest, ScoreSendsTheTeachersPrompt) {
  TeacherProcess teacher(dir_, dir_.File("student/model"));
  std::string rows;
  for (int i = 0; i < 6; ++i) {
    rows += Concat("{\"prompt_ids\":[1,", 9 + i, "],\"response_ids\":[5,7]",
                   i % 3 > 0 ? Concat(",\"hint_ids\":[1,", 9 + i, ",77,30]") : "", "}\n");
  }
  WriteFile(dir_.File("rows.jsonl"), rows);
  std::string output;
  const auto score = [&](const std::vector<std::string>& settings, const std::string& file) {
    std::vector<std::string> arguments = {"score",
                                          "--config",
                                          dir_.File("train.yaml"),
                                          "--teacher",
                                          teacher.endpoint(),
                                          "--cache-dir",
                                          dir_.File("cache"),
                                          "--input",
                                          dir_.File(file)};
    for (const std::string& setting : settings) {
      arguments.push_back("--set");
      arguments.push_back(setting);
    }
    return Run(arguments, &output);
  };
  const auto says = [&](const std::string& text) {
    EXPECT_NE(output.find(text), std::string::npos) << output;
  };
  ASSERT_EQ(score({}, "rows.jsonl"), 0) << output;
  says("from_teacher\t6\n");
  EXPECT_EQ(output.find("teacher_prompt_missing"), std::string::npos) << output;
  ASSERT_EQ(score(hints_, "rows.jsonl"), 0) << output;
  says("sequences\t6\n");
  says("from_cache\t2\nfrom_teacher\t4\nteacher_prompt_missing\t2\n");
  // The rows without a hint are left out, and the others are in the cache.
  ASSERT_EQ(
      score({"data.teacher_prompt_key=hint", "data.teacher_prompt_missing=skip"}, "rows.jsonl"), 0)
      << output;
  says("sequences\t4\n");
  says("from_cache\t4\nfrom_teacher\t0\nteacher_prompt_missing\t2\n");
  // These are the sequences that the teacher scores: the hint's ids in front of the response's.
  std::string whole;
  for (int i = 0; i < 6; ++i) {
    if (i % 3 > 0)
      whole += Concat("{\"prompt_ids\":[1,", 9 + i, ",77,30],\"response_ids\":[5,7]}\n");
  }
  WriteFile(dir_.File("whole.jsonl"), whole);
  ASSERT_EQ(score({}, "whole.jsonl"), 0) << output;
  says("from_cache\t4\n");
  EXPECT_EQ(score({"data.teacher_prompt_key=hint"}, "rows.jsonl"), 65) << output;
  says("rows.jsonl:1");
  says("has no \"hint\" for the teacher's prompt");
}

// The distance of a model to itself is zero; its start is a teacher of it, too.
TEST_F(TrainerSelfTeacherTest, AnEvaluationTakesTheStartAndTheLiveWeights) {
  for (const char* weights : {"start", "live"}) {
    std::string output;
    ASSERT_EQ(
        Run({"eval", "--config", dir_.File("train.yaml"), "--set", "teacher.kind=self", "--set",
             Concat("teacher.weights=", weights), "--output", dir_.File("eval.json")},
            &output),
        0)
        << output;
    // Both sides compute the same numbers in float32.
    EXPECT_NEAR(
        nlohmann::json::parse(ReadFile(dir_.File("eval.json"))).at("kl_to_teacher").get<double>(),
        0.0, 1e-5);
  }
}

}  // namespace
}  // namespace taopd::testing
