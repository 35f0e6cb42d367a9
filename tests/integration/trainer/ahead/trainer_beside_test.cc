// Tests of evaluations beside training (eval.mode), with the real programs: they measure what
// blocking ones measure, change no weight, and are recorded once, whatever happens.

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

constexpr int64_t kSteps = 12;

class TrainerBesideTest : public TrainerTest {
 protected:
  // Evaluations take longer than a step, so they overlap with several.
  Strings Settings(const std::string& run, const std::string& mode, const Strings& more = {}) {
    const Strings settings = Words(Concat(RunDir(run), " trainer.total_steps=", kSteps,
                                          " trainer.save_every=2 trainer.eval_every=3 "
                                          "trainer.micro_batch_tokens=64 eval.num_prompts=24 "
                                          "eval.mode=",
                                          mode));
    return Joined(settings, more);
  }
  // Makes evaluations generate and grade answers instead of measuring the divergence.
  Strings Accuracy() {
    WriteTokenizer();
    const Strings files = {WriteProblems(12), "student.model=" + WriteTextStudent()};
    return Joined(files, Words("eval.measure=accuracy eval.num_prompts=12 eval.n=4 "
                               "eval.max_response_length=40"));
  }
  void ExpectSameRun(const std::string& a, const std::string& b) {
    EXPECT_EQ(ModelOf(a), ModelOf(b));
    // Two ranks add the rows' losses in another order.
    constexpr double kOtherRanks = 1e-12;
    ExpectSameLosses(a, b, kOtherRanks);
    EXPECT_EQ(Evaluations(a), Evaluations(b));
    EXPECT_EQ(Samples(a), Samples(b));
    EXPECT_FALSE(Exists(a + "/evaluation_journal"));
  }
  // Kills a run and resumes it, and compares it with a blocking run that is left alone.
  void KillAndCompare(int64_t num_ranks, const Strings& more);
};

void TrainerBesideTest::KillAndCompare(int64_t num_ranks, const Strings& more) {
  Strings all = Joined(more, {Concat("trainer.total_steps=", StepsOfKilledRun())});
  if (num_ranks > 1) all.push_back("dist.deterministic=true");
  const absl::Duration whole = TimeOf(TrainArguments(Settings("whole", "blocking", all)));
  ASSERT_NO_FATAL_FAILURE(
      KillAndResume(TrainArguments(Settings("killed", "beside", all), {"--resume=auto"}), "killed",
                    whole, num_ranks));
  ExpectSameRun("killed", "whole");
}

TEST_F(TrainerBesideTest, MeasuresWhatABlockingEvaluationMeasures) {
  for (const bool accuracy : {false, true}) {
    const Strings more = accuracy ? Accuracy() : Strings{"eval.kl_top_k=16"};
    for (const int64_t async_steps : {0, 1}) {
      SCOPED_TRACE(Concat(accuracy ? "accuracy" : "kl", ", async_steps ", async_steps));
      const Strings all = Joined(more, {Concat("trainer.async_steps=", async_steps)});
      const std::string name = Concat(accuracy, async_steps);
      ASSERT_TRUE(Trains(Settings("blocking" + name, "blocking", all)));
      ASSERT_TRUE(Trains(Settings("beside" + name, "beside", all)));
      ExpectSameRun("beside" + name, "blocking" + name);
      ASSERT_EQ(Evaluations("beside" + name).size(), 5U) << "steps 0, 3, 6, 9 and 12";
      EXPECT_EQ(Evaluations("beside" + name)[0].at("step"), 0);
      EXPECT_EQ(Evaluations("beside" + name)[4].at("step"), kSteps);
    }
  }
  // The evaluations did overlap with steps: a record of step 3 comes after that of step 4.
  std::vector<int64_t> order;
  for (const auto& row : Lines("beside10/metrics.jsonl")) order.push_back(row.at("step"));
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
}

TEST_F(TrainerBesideTest, RanksShareAnEvaluation) {
  Strings settings = Accuracy();
  settings.insert(settings.end(), {"dist.deterministic=true", "eval.kv_cache_gb=0.25"});
  ASSERT_TRUE(Trains(Settings("two", "beside", settings), {}, 2));
  settings.pop_back();
  ASSERT_TRUE(Trains(Settings("one", "blocking", settings)));
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
  // An evaluation takes longer than all steps.
  const Strings slow =
      Joined(Accuracy(), Words("eval.n=16 eval.max_response_length=60 trainer.eval_every=6 "
                               "trainer.eval_at_start=false"));
  ASSERT_TRUE(Trains(Settings("whole", "blocking", slow)));
  bool was_taken_up = false;
  for (int attempt = 0; attempt < 10 && !was_taken_up; ++attempt) {
    const std::string run = Concat("stopped-", attempt);
    Process trainer(Command(TrainArguments(Settings(run, "beside", slow))),
                    dir_.File("stopped.log"));
    ASSERT_TRUE(AwaitCheckpoint(run, 8, trainer));
    trainer.Signal(SIGTERM);
    ASSERT_EQ(trainer.Wait(), 75) << trainer.Output();
    const int64_t stopped = NewestCheckpoint(run);
    ASSERT_TRUE(Trains(Settings(run, "beside", slow), {"--resume"}));
    ExpectSameRun(run, "whole");
    was_taken_up =
        stopped > 6 && output_.find("an evaluation continues step=6") != std::string::npos;
  }
  EXPECT_TRUE(was_taken_up) << output_;
}

// The best evaluation names the checkpoint of the weights that it measured, which is kept although
// the run has gone on.
TEST_F(TrainerBesideTest, TheBestIsTheCheckpointOfTheMeasuredWeights) {
  const Strings best = Words(
      "trainer.save_every=0 trainer.eval_every=1 trainer.keep_checkpoints=2 "
      "trainer.best_is=largest "
      "trainer.eval_at_start=false trainer.best_metric=eval/kl_to_teacher");
  for (const char* mode : {"blocking", "beside"}) ASSERT_TRUE(Trains(Settings(mode, mode, best)));
  // The divergence falls, so the first one is the largest.
  EXPECT_EQ(ReadFile(dir_.File("beside/best.json")), ReadFile(dir_.File("blocking/best.json")));
  const auto json = ReadJson("beside/best.json");
  EXPECT_EQ(json.at("step"), 1);
  EXPECT_EQ(json.at("value"), Evaluations("beside")[0].at("eval/kl_to_teacher"));
  EXPECT_EQ(FileHash(CheckpointOf("beside", 1) + "/model/model.safetensors"),
            FileHash(CheckpointOf("blocking", 1) + "/model/model.safetensors"));
  ExpectSameRun("beside", "blocking");
}

// A rate of zero changes nothing, so no evaluation is better than the first one. Beside training,
// the decision after step s depends on the evaluations before s, so it comes one evaluation later
// than that of a blocking run, and is always the same.
TEST_F(TrainerBesideTest, AnEarlyStopDoesNotDependOnTheTime) {
  const Strings settings = {"trainer.total_steps=20",
                            "trainer.save_every=3",
                            "trainer.eval_every=2",
                            "trainer.best_metric=eval/kl_to_teacher",
                            "trainer.early_stop_evaluations=2",
                            "optimizer.lr=0"};
  ASSERT_TRUE(Trains(Settings("blocking", "blocking", settings)));
  EXPECT_THAT(output_, HasSubstr("finishing early"));
  EXPECT_EQ(NewestCheckpoint("blocking"), 4);
  EXPECT_TRUE(Exists("blocking/model/model.safetensors"));
  for (const char* run : {"beside", "again"}) {
    ASSERT_TRUE(Trains(Settings(run, "beside", settings)));
    EXPECT_THAT(output_, HasSubstr("finishing early"));
    EXPECT_EQ(NewestCheckpoint(run), 6);
    EXPECT_EQ(Evaluations(run).size(), 4U) << "the last weights are evaluated, too";
  }
  // A second start finds in the record that the run has ended.
  for (const auto& [mode, steps] : {std::pair("blocking", 4U), std::pair("beside", 6U)}) {
    ASSERT_TRUE(Trains(Settings(mode, mode, settings), {"--resume"}));
    EXPECT_THAT(output_, HasSubstr("the run is finished"));
    EXPECT_EQ(Losses(mode).size(), steps);
  }
}

TEST_F(TrainerBesideTest, ARollBackKeepsTheEvaluationsUpToItsCheckpoint) {
  const Strings collapse = Words(
      "trainer.total_steps=24 trainer.save_every=1 trainer.eval_every=1 optimizer.lr=8.0 "
      "optimizer.warmup_steps=200 optimizer.max_grad_norm=0 guard.baseline_steps=2 "
      "guard.patience=2 guard.low_entropy.limit=0.5 guard.low_entropy.action=roll_back "
      "guard.rollback_lr_factor=0.01");
  ASSERT_TRUE(Trains(Settings("blocking", "blocking", collapse)));
  ASSERT_THAT(output_, HasSubstr("rolled back"));
  ASSERT_TRUE(Trains(Settings("beside", "beside", collapse)));
  ASSERT_THAT(output_, HasSubstr("rolled back"));
  ExpectSameRun("beside", "blocking");
  ASSERT_EQ(Evaluations("beside").size(), 25U);
}

TEST_F(TrainerBesideTest, RefusesWhatHasNoMeaning) {
  ExpectTrainFails(Settings("run", "blocking", {"eval.kv_cache_gb=2"}), 64, "eval.kv_cache_gb = 2");
  ExpectTrainFails(Settings("run", "beside", {"teacher.kind=self", "teacher.weights=live"}), 64,
                   "would change during an evaluation");
  EXPECT_FALSE(Exists("run"));
}

}  // namespace
}  // namespace taopd::testing
