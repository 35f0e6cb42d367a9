// Tests of runs whose rollouts are ahead of training (trainer.async_steps) with rewards, and with
// the student as its own teacher: kills and ranks change nothing.
#include <gmock/gmock.h>

#include "tests/integration/trainer/ahead/killed_run.h"

namespace taopd::testing {
namespace {

using ::testing::HasSubstr;

class TrainerAheadTest : public KilledRunTest {
 protected:
  std::vector<std::string> Command(int64_t num_ranks, const std::string& run,
                                   const std::vector<std::string>& settings,
                                   const std::vector<std::string>& flags = {}) {
    std::vector<std::string> arguments = {"train",
                                          "--config",
                                          dir_.File("train.yaml"),
                                          "--set",
                                          Concat("run.dir=", dir_.File(run)),
                                          "--set",
                                          "dist.deterministic=true"};
    for (const std::string& setting : settings) {
      arguments.insert(arguments.end(), {"--set", setting});
    }
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return OnRanks(num_ranks, std::move(arguments));
  }
  int TrainRun(int64_t num_ranks, const std::string& run, const std::vector<std::string>& settings,
               std::string* output, const std::vector<std::string>& flags = {}) {
    return RunProgram(Command(num_ranks, run, settings, flags), dir_.File("command.log"), output,
                      absl::Seconds(240));
  }
  // Kills a run on one rank and on two, and compares it with one that is left alone.
  void KillAndCompare(std::vector<std::string> settings, int64_t async_steps) {
    const int64_t num_kills = NumKills(2);
    settings.push_back(Concat("trainer.async_steps=", async_steps));
    settings.push_back(Concat("trainer.total_steps=", StepsOf(num_kills)));
    std::string output;
    const absl::Time start = absl::Now();
    ASSERT_EQ(TrainRun(1, "whole", settings, &output), 0) << output;
    const absl::Duration whole = absl::Now() - start;
    for (const int64_t num_ranks : {1, 2}) {
      SCOPED_TRACE(Concat(num_ranks, " ranks"));
      const std::string run = Concat("killed-", num_ranks);
      KillAtRandomMoments(Command(num_ranks, run, settings, {"--resume=auto"}), run, num_kills,
                          whole);
      ASSERT_FALSE(HasFatalFailure());
      ASSERT_EQ(TrainRun(num_ranks, run, settings, &output, {"--resume=auto"}), 0) << output;
      EXPECT_EQ(FilesOf(dir_.File(run + "/model")), FilesOf(dir_.File("whole/model")));
      EXPECT_EQ(Losses(dir_.File(run)).size(), Losses(dir_.File("whole")).size());
      EXPECT_EQ(LastMetric(run, "policy/staleness"), async_steps);
    }
  }
  // Trains on rewards of a grader alone.
  std::vector<std::string> RewardSettings() {
    WriteTokenizer();
    std::string rows;
    for (int i = 0; i < 12; ++i)
      rows += Concat("{\"prompt\": \"", i, " + ", i, " =\", \"answer\": \"(?s).*[!-P].*\"}\n");
    WriteFile(dir_.File("rows.jsonl"), rows);
    return {"student.model=" + WriteTextStudent(),
            "data.train=[" + dir_.File("rows.jsonl") + "]",
            "data.val=[]",
            "eval.measure=none",
            "rollout.n=4",
            "trainer.mini_batch_size=4",
            "teacher.kind=none",
            "objective.name=policy_gradient",
            "reward.grader=regex",
            "reward.require_stop=false"};
  }
  std::vector<std::string> SelfSettings(const std::vector<std::string>& weights) {
    std::vector<std::string> settings = {"teacher.kind=self", "eval.measure=none"};
    settings.insert(settings.end(), weights.begin(), weights.end());
    return settings;
  }
};

TEST_F(TrainerAheadTest, RewardsSurviveKillsOneStepOff) { KillAndCompare(RewardSettings(), 1); }

TEST_F(TrainerAheadTest, RewardsSurviveKillsTwoStepsOff) { KillAndCompare(RewardSettings(), 2); }

TEST_F(TrainerAheadTest, AnAverageAsTheTeacherSurvivesKills) {
  KillAndCompare(SelfSettings({"teacher.weights=ema", "teacher.ema=0.5"}), 1);
}

TEST_F(TrainerAheadTest, LiveWeightsAsTheTeacherSurviveKills) {
  KillAndCompare(SelfSettings({"teacher.weights=live"}), 2);
}

TEST_F(TrainerAheadTest, RefreshedWeightsAsTheTeacherSurviveKills) {
  KillAndCompare(SelfSettings({"teacher.refresh_every=3"}), 1);
}

// On its own prompt, the policy that has generated a response is at no distance from itself. With
// a rate of zero that holds whatever the number of steps; with another rate it does not.
TEST_F(TrainerAheadTest, LiveWeightsAreThoseThatGenerate) {
  // The logits of the training pass and of inference differ in the order of their sums.
  constexpr double kSumOrder = 5e-5;
  std::string output;
  for (const char* rate : {"0", "1e-2"}) {
    const std::string run = Concat("run-", rate);
    ASSERT_EQ(TrainRun(1, run,
                       SelfSettings({"teacher.weights=live", "trainer.async_steps=1",
                                     "optimizer.lr=" + std::string(rate)}),
                       &output),
              0)
        << output;
    const std::vector<double> losses = Losses(dir_.File(run));
    ASSERT_EQ(losses.size(), 6U);
    EXPECT_NEAR(losses[0], 0, kSumOrder);
    if (rate[0] == '0') {
      for (const double loss : losses) EXPECT_NEAR(loss, 0, kSumOrder);
    } else {
      EXPECT_GT(losses[2], 10 * kSumOrder) << "two updates lie between the two";
    }
  }
}

// Dense log-probs would come from other weights than the scores.
TEST_F(TrainerAheadTest, AMovingTeacherMeasuresNoFullDivergence) {
  std::string output;
  EXPECT_EQ(TrainRun(1, "run",
                     SelfSettings({"teacher.weights=live", "trainer.async_steps=1",
                                   "objective.full_kl_rows=4"}),
                     &output),
            64);
  EXPECT_THAT(output, HasSubstr("objective.full_kl_rows = 4"));
}

}  // namespace
}  // namespace taopd::testing
