// Tests of evaluations beside training (eval.mode), with the real programs: they measure what
// blocking ones measure, change no weight, and are recorded once, whatever happens.
#include <gmock/gmock.h>
#include <signal.h>

#include <cmath>
#include <set>
#include <sstream>

#include "tests/integration/trainer/ahead/killed_run.h"

namespace taopd::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSteps = 12;

class TrainerBesideTest : public KilledRunTest {
 protected:
  void SetUp() override {
    KilledRunTest::SetUp();
    teacher_.emplace(dir_, teacher_model_);
  }
  // Evaluations take longer than a step, so they lie beside several.
  std::vector<std::string> Settings(const std::string& run, const std::string& mode,
                                    const std::vector<std::string>& more = {}) {
    std::vector<std::string> settings = {Concat("run.dir=", dir_.File(run)),
                                         Concat("trainer.total_steps=", kSteps),
                                         "trainer.save_every=2",
                                         "trainer.eval_every=3",
                                         "trainer.micro_batch_tokens=64",
                                         "eval.num_prompts=24",
                                         "eval.mode=" + mode};
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  }
  // Makes evaluations generate and grade answers instead of measuring the divergence.
  std::vector<std::string> Accuracy() {
    WriteTokenizer();
    std::string problems;
    for (int i = 0; i < 12; ++i)
      problems += Concat("{\"prompt\": \"Once upon ", i, "\", \"answer\": \"", i, "\"}\n");
    WriteFile(dir_.File("problems.jsonl"), problems);
    return {"student.model=" + WriteTextStudent(),
            "data.val=[" + dir_.File("problems.jsonl") + "]",
            "eval.measure=accuracy",
            "eval.num_prompts=12",
            "eval.n=4",
            "eval.max_response_length=40"};
  }
  // Returns the evaluations of a run in the order of their records: step and metrics.
  std::vector<std::pair<int64_t, nlohmann::json>> Evaluations(const std::string& run) {
    std::vector<std::pair<int64_t, nlohmann::json>> evaluations;
    std::istringstream lines(ReadFile(dir_.File(run + "/metrics.jsonl")));
    for (std::string line; std::getline(lines, line);) {
      nlohmann::json row = nlohmann::json::parse(line);
      if (!row.contains("eval/n")) continue;
      row.erase("time");
      evaluations.emplace_back(row.at("step"), row);
    }
    return evaluations;
  }
  // Returns the lines of samples.jsonl, sorted.
  std::multiset<std::string> Samples(const std::string& run) {
    std::multiset<std::string> samples;
    const std::string path = dir_.File(run + "/samples.jsonl");
    std::istringstream lines(std::filesystem::exists(path) ? ReadFile(path) : "");
    for (std::string line; std::getline(lines, line);) samples.insert(line);
    return samples;
  }
  void ExpectSameRun(const std::string& a, const std::string& b) {
    EXPECT_EQ(FilesOf(dir_.File(a + "/model")), FilesOf(dir_.File(b + "/model")));
    // Two ranks add the rows' losses in another order.
    constexpr double kOtherRanks = 1e-12;
    const std::vector<double> losses = Losses(dir_.File(a)), expected = Losses(dir_.File(b));
    ASSERT_EQ(losses.size(), expected.size());
    for (size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], expected[i], kOtherRanks * std::abs(expected[i])) << i;
    EXPECT_EQ(Evaluations(a), Evaluations(b));
    EXPECT_EQ(Samples(a), Samples(b));
    EXPECT_FALSE(std::filesystem::exists(dir_.File(a + "/evaluation_journal")));
  }
  int TrainOnRanks(int64_t num_ranks, std::vector<std::string> settings, std::string* output,
                   const std::vector<std::string>& flags = {}) {
    return RunProgram(Command(num_ranks, std::move(settings), flags), dir_.File("command.log"),
                      output, absl::Seconds(240));
  }
  std::vector<std::string> Command(int64_t num_ranks, std::vector<std::string> settings,
                                   const std::vector<std::string>& flags = {}) {
    if (num_ranks > 1) settings.push_back("dist.deterministic=true");
    return OnRanks(num_ranks, TrainArguments(teacher_->endpoint(), settings, flags));
  }
  // Kills a run and resumes it, and compares it with a blocking run that is left alone.
  void KillAndCompare(int64_t num_ranks, const std::vector<std::string>& more);

  std::optional<TeacherProcess> teacher_;
};

void TrainerBesideTest::KillAndCompare(int64_t num_ranks, const std::vector<std::string>& more) {
  const int64_t num_kills = NumKills(3);
  std::vector<std::string> all = more;
  all.push_back(Concat("trainer.total_steps=", StepsOf(num_kills)));
  if (num_ranks > 1) all.push_back("dist.deterministic=true");
  std::string output;
  const absl::Time start = absl::Now();
  ASSERT_EQ(TrainOnRanks(1, Settings("whole", "blocking", all), &output), 0) << output;
  const auto settings = Settings("killed", "beside", all);
  KillAtRandomMoments(Command(num_ranks, settings, {"--resume=auto"}), "killed", num_kills,
                      absl::Now() - start);
  ASSERT_EQ(TrainOnRanks(num_ranks, settings, &output, {"--resume=auto"}), 0) << output;
  ExpectSameRun("killed", "whole");
}

TEST_F(TrainerBesideTest, MeasuresWhatABlockingEvaluationMeasures) {
  std::string output;
  for (const bool accuracy : {false, true}) {
    const std::vector<std::string> more =
        accuracy ? Accuracy() : std::vector<std::string>{"eval.kl_top_k=16"};
    for (const int64_t async_steps : {0, 1}) {
      SCOPED_TRACE(Concat(accuracy ? "accuracy" : "kl", ", async_steps ", async_steps));
      std::vector<std::string> all = more;
      all.push_back(Concat("trainer.async_steps=", async_steps));
      const std::string name = Concat(accuracy, async_steps);
      ASSERT_EQ(TrainOnRanks(1, Settings("blocking" + name, "blocking", all), &output), 0)
          << output;
      ASSERT_EQ(TrainOnRanks(1, Settings("beside" + name, "beside", all), &output), 0) << output;
      ExpectSameRun("beside" + name, "blocking" + name);
      ASSERT_EQ(Evaluations("beside" + name).size(), 5U) << "steps 0, 3, 6, 9 and 12";
      EXPECT_EQ(Evaluations("beside" + name)[0].first, 0);
      EXPECT_EQ(Evaluations("beside" + name)[4].first, kSteps);
    }
  }
  // The evaluations did lie beside steps: a record of step 3 stands behind that of step 4.
  std::vector<int64_t> order;
  std::istringstream lines(ReadFile(dir_.File("beside10/metrics.jsonl")));
  for (std::string line; std::getline(lines, line);)
    order.push_back(nlohmann::json::parse(line).at("step"));
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
}

TEST_F(TrainerBesideTest, RanksShareAnEvaluation) {
  std::string output;
  std::vector<std::string> settings = Accuracy();
  settings.insert(settings.end(), {"dist.deterministic=true", "eval.kv_cache_gb=0.25"});
  ASSERT_EQ(TrainOnRanks(2, Settings("two", "beside", settings), &output), 0) << output;
  settings.pop_back();
  ASSERT_EQ(TrainOnRanks(1, Settings("one", "blocking", settings), &output), 0) << output;
  ExpectSameRun("two", "one");
}

TEST_F(TrainerBesideTest, KilledAtRandomMoments) { KillAndCompare(1, {}); }

TEST_F(TrainerBesideTest, KilledAtRandomMomentsOneStepOff) {
  KillAndCompare(1, {"trainer.async_steps=1"});
}

TEST_F(TrainerBesideTest, KilledOnTwoRanks) { KillAndCompare(2, {}); }

// The evaluation of step 6 is open at the stop. Its weights are those of an earlier checkpoint, and
// its journal has what is done.
TEST_F(TrainerBesideTest, AStoppedEvaluationIsTakenUpAgain) {
  std::string output;
  // An evaluation takes longer than all steps.
  std::vector<std::string> slow = Accuracy();
  slow.insert(slow.end(), {"eval.n=16", "eval.max_response_length=60", "trainer.eval_every=6",
                           "trainer.eval_at_start=false"});
  ASSERT_EQ(TrainOnRanks(1, Settings("whole", "blocking", slow), &output), 0) << output;
  bool was_taken_up = false;
  for (int attempt = 0; attempt < 10 && !was_taken_up; ++attempt) {
    const std::string run = Concat("stopped-", attempt);
    Process trainer(Command(1, Settings(run, "beside", slow)), dir_.File("stopped.log"));
    ASSERT_TRUE(PollUntil(absl::Seconds(60),
                          [&] { return NewestCheckpoint(run) >= 8 || !trainer.running(); }));
    trainer.Signal(SIGTERM);
    ASSERT_EQ(trainer.Wait(), 75) << trainer.Output();
    const int64_t stopped = NewestCheckpoint(run);
    ASSERT_EQ(TrainOnRanks(1, Settings(run, "beside", slow), &output, {"--resume"}), 0) << output;
    ExpectSameRun(run, "whole");
    was_taken_up = stopped > 6 && output.find("an evaluation goes on step=6") != std::string::npos;
  }
  EXPECT_TRUE(was_taken_up) << output;
}

// The best evaluation names the checkpoint of the weights that it measured, which is kept although
// the run has gone on.
TEST_F(TrainerBesideTest, TheBestIsTheCheckpointOfTheMeasuredWeights) {
  std::string output;
  const std::vector<std::string> best = {
      "trainer.save_every=0",        "trainer.eval_every=1",
      "trainer.keep_checkpoints=2",  "trainer.best_is=largest",
      "trainer.eval_at_start=false", "trainer.best_metric=eval/kl_to_teacher"};
  for (const char* mode : {"blocking", "beside"})
    ASSERT_EQ(TrainOnRanks(1, Settings(mode, mode, best), &output), 0) << output;
  // The divergence falls, so the first one is the largest.
  EXPECT_EQ(ReadFile(dir_.File("beside/best.json")), ReadFile(dir_.File("blocking/best.json")));
  const auto json = nlohmann::json::parse(ReadFile(dir_.File("beside/best.json")));
  EXPECT_EQ(json.at("step"), 1);
  EXPECT_EQ(json.at("value"), Evaluations("beside")[0].second.at("eval/kl_to_teacher"));
  EXPECT_EQ(FileHash(dir_.File("beside/checkpoints/step-000001/model/model.safetensors")),
            FileHash(dir_.File("blocking/checkpoints/step-000001/model/model.safetensors")));
  ExpectSameRun("beside", "blocking");
}

// The decision after step s depends on the evaluations before s, so it comes one evaluation later
// than that of a blocking run, and is always the same.
TEST_F(TrainerBesideTest, AnEarlyStopDoesNotDependOnTheTime) {
  std::string output;
  const std::vector<std::string> settings = {"trainer.total_steps=20", "trainer.eval_every=2",
                                             "trainer.best_metric=eval/kl_to_teacher",
                                             "trainer.early_stop_evaluations=2", "optimizer.lr=0"};
  ASSERT_EQ(TrainOnRanks(1, Settings("blocking", "blocking", settings), &output), 0) << output;
  EXPECT_EQ(NewestCheckpoint("blocking"), 4);
  for (const char* run : {"beside", "again"}) {
    ASSERT_EQ(TrainOnRanks(1, Settings(run, "beside", settings), &output), 0) << output;
    EXPECT_THAT(output, HasSubstr("finishing early"));
    EXPECT_EQ(NewestCheckpoint(run), 6);
    EXPECT_EQ(Evaluations(run).size(), 4U) << "the last weights are evaluated, too";
  }
  // A second start finds in the record that the run has ended.
  ASSERT_EQ(TrainOnRanks(1, Settings("beside", "beside", settings), &output, {"--resume"}), 0)
      << output;
  EXPECT_THAT(output, HasSubstr("the run is finished"));
  EXPECT_EQ(Losses(dir_.File("beside")).size(), 6U);
}

TEST_F(TrainerBesideTest, ARollBackKeepsTheEvaluationsUpToItsCheckpoint) {
  std::string output;
  const std::vector<std::string> collapse = {
      "trainer.total_steps=24",       "trainer.save_every=1",
      "trainer.eval_every=1",         "optimizer.lr=8.0",
      "optimizer.warmup_steps=200",   "optimizer.max_grad_norm=0",
      "guard.baseline_steps=2",       "guard.patience=2",
      "guard.low_entropy.limit=0.5",  "guard.low_entropy.action=roll_back",
      "guard.rollback_lr_factor=0.01"};
  ASSERT_EQ(TrainOnRanks(1, Settings("blocking", "blocking", collapse), &output), 0) << output;
  ASSERT_THAT(output, HasSubstr("rolled back"));
  ASSERT_EQ(TrainOnRanks(1, Settings("beside", "beside", collapse), &output), 0) << output;
  ASSERT_THAT(output, HasSubstr("rolled back"));
  ExpectSameRun("beside", "blocking");
  ASSERT_EQ(Evaluations("beside").size(), 25U);
}

TEST_F(TrainerBesideTest, RefusesWhatHasNoMeaning) {
  std::string output;
  EXPECT_EQ(TrainOnRanks(1, Settings("run", "blocking", {"eval.kv_cache_gb=2"}), &output), 64);
  EXPECT_THAT(output, HasSubstr("eval.kv_cache_gb = 2"));
  EXPECT_EQ(
      TrainOnRanks(1,
                   Settings("run", "beside",
                            {"teacher.kind=self", "teacher.endpoints=[]", "teacher.weights=live"}),
                   &output),
      64);
  EXPECT_FALSE(std::filesystem::exists(dir_.File("run")));
}

}  // namespace
}  // namespace taopd::testing
