// Tests of runs whose rollouts are ahead of training (trainer.async_steps) with rewards, and with
// the student as its own teacher: kills and ranks change nothing.

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

class TrainerAheadTest : public TrainerTest {
 protected:
  Strings Arguments(const std::string& run, const Strings& settings, const Strings& flags = {}) {
    return TrainArguments(Joined({RunDir(run), "dist.deterministic=true"}, settings), flags);
  }
  // Kills a run on one rank and on two, and compares it with one that is left alone.
  void KillAndCompare(Strings settings, int64_t async_steps) {
    settings.push_back(Concat("trainer.async_steps=", async_steps));
    settings.push_back(Concat("trainer.total_steps=", StepsOfKilledRun()));
    const absl::Duration whole = TimeOf(Arguments("whole", settings));
    for (const int64_t num_ranks : {1, 2}) {
      SCOPED_TRACE(Concat(num_ranks, " ranks"));
      const std::string run = Concat("killed-", num_ranks);
      ASSERT_NO_FATAL_FAILURE(
          KillAndResume(Arguments(run, settings, {"--resume=auto"}), run, whole, num_ranks));
      EXPECT_EQ(ModelOf(run), ModelOf("whole"));
      EXPECT_EQ(Losses(run).size(), Losses("whole").size());
      EXPECT_EQ(LastMetric(run, "policy/staleness"), async_steps);
    }
  }
  Strings GraderSettings() {
    return Joined(RewardSettings(), Words("trainer.mini_batch_size=4 reward.grader=regex "
                                          "reward.require_stop=false"));
  }
  static Strings SelfSettings(const std::string& more) {
    return Words("teacher.kind=self eval.measure=none " + more);
  }
};

TEST_F(TrainerAheadTest, RewardsSurviveKillsOneStepOff) { KillAndCompare(GraderSettings(), 1); }

TEST_F(TrainerAheadTest, RewardsSurviveKillsTwoStepsOff) { KillAndCompare(GraderSettings(), 2); }

TEST_F(TrainerAheadTest, AnAverageAsTheTeacherSurvivesKills) {
  KillAndCompare(SelfSettings("teacher.weights=ema teacher.ema=0.5"), 1);
}

TEST_F(TrainerAheadTest, LiveWeightsAsTheTeacherSurviveKills) {
  KillAndCompare(SelfSettings("teacher.weights=live"), 2);
}

TEST_F(TrainerAheadTest, RefreshedWeightsAsTheTeacherSurviveKills) {
  KillAndCompare(SelfSettings("teacher.refresh_every=3"), 1);
}

// On its own prompt, the policy that has generated a response is at no distance from itself. With
// a rate of zero that holds whatever the number of steps; with another rate it does not.
TEST_F(TrainerAheadTest, LiveWeightsAreThoseThatGenerate) {
  // The logits of the training pass and of inference differ in the order of their sums.
  constexpr double kSumOrder = 5e-5;
  for (const char* rate : {"0", "1e-2"}) {
    const std::string run = Concat("run-", rate);
    ASSERT_TRUE(
        Runs(Arguments(run, SelfSettings(Concat("teacher.weights=live trainer.async_steps=1 "
                                                "optimizer.lr=",
                                                rate)))));
    const std::vector<double> losses = Losses(run);
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
  ExpectTrainFails(
      SelfSettings("teacher.weights=live trainer.async_steps=1 objective.full_kl_rows=4"), 64,
      "objective.full_kl_rows = 4");
}

}  // namespace
}  // namespace taopd::testing
