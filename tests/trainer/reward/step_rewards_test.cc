#include "trainer/reward/step_rewards.h"

#include "tests/support/byte_tokenizer.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

Rollout Response(const std::string& text, FinishReason finish = FinishReason::kStop) {
  Rollout rollout;
  rollout.response_ids.assign(text.begin(), text.end());
  rollout.finish = finish;
  return rollout;
}

// Two prompts with three rollouts each, judged by the grader `exact`.
class StepRewardsTest : public ::testing::Test {
 protected:
  StepRewardsTest() {
    RewardConfig config;
    config.grader = "exact";
    source_ = *MakeGraderReward(config);
    options_.source = source_.get();
    options_.tokenizer = &tokenizer_;
    prompts_[0].id = "p0";
    prompts_[0].prompt = "2+2=";
    prompts_[0].answer = "4";
    prompts_[0].source = "sums";
    prompts_[1].id = "p1";
    prompts_[1].prompt_ids = {'x', '?'};
    prompts_[1].answer = "5";
  }
  StepRewards Rewards() {
    std::vector<const PromptRecord*> prompts;
    for (int i = 0; i < 6; ++i) prompts.push_back(&prompts_[i / 3]);
    return StepRewards(options_, prompts, 3, "step-7");
  }
  ByteTokenizer tokenizer_;
  std::unique_ptr<RewardSource> source_;
  StepRewardOptions options_;
  PromptRecord prompts_[2];
};

TEST_F(StepRewardsTest, AGroupIsJudgedWhenItsLastRolloutIsThere) {
  StepRewards rewards = Rewards();
  const Rollout right = Response("4"), wrong = Response("5");
  EXPECT_FALSE(rewards.AddRollout(2, right));
  EXPECT_FALSE(rewards.AddRollout(3, wrong)) << "of the other prompt";
  EXPECT_FALSE(rewards.AddRollout(0, wrong));
  std::optional<RewardGroup> group = rewards.AddRollout(1, wrong);
  ASSERT_TRUE(group);
  EXPECT_EQ(group->first, 0);
  ASSERT_EQ(group->samples.size(), 3u);
  EXPECT_EQ(group->samples[2].id, "step-7-2");
  EXPECT_EQ(group->samples[2].prompt, "2+2=");
  EXPECT_EQ(group->samples[2].response, "4");
  EXPECT_EQ(group->samples[2].answer, "4");
  EXPECT_EQ(group->samples[2].source, "sums");
  bool is_answered = false;
  rewards.Ask(*std::move(group), [&](absl::StatusOr<RewardedGroup> rewarded) {
    ASSERT_OK(rewarded);
    is_answered = true;
    EXPECT_EQ(rewarded->rewards, (std::vector<double>{0, 0, 1}));
    const double scale = std::sqrt(1.0 / 3) + 1e-6;
    for (int i = 0; i < 3; ++i)
      EXPECT_NEAR(rewarded->advantages[i], (i == 2 ? 2.0 / 3 : -1.0 / 3) / scale, 1e-12);
  });
  EXPECT_TRUE(is_answered);
}

TEST_F(StepRewardsTest, APromptOfIdsIsDecoded) {
  StepRewards rewards = Rewards();
  const Rollout one = Response("5");
  rewards.AddRollout(3, one);
  rewards.AddRollout(4, one);
  const std::optional<RewardGroup> group = rewards.AddRollout(5, one);
  ASSERT_TRUE(group);
  EXPECT_EQ(group->first, 3);
  EXPECT_EQ(group->samples[0].prompt, "x?");
}

TEST_F(StepRewardsTest, ACutResponseIsWrongUnlessItMayBeCut) {
  for (const bool require_stop : {true, false}) {
    RewardConfig config;
    config.grader = "exact";
    config.require_stop = require_stop;
    const std::unique_ptr<RewardSource> grader = *MakeGraderReward(config);
    const std::vector<RewardSample> samples = {{"0", "", "4", "4", "", true},
                                               {"1", "", "4", "4", "", false},
                                               {"2", "", "", "", "", false}};
    grader->Reward(samples, [&](absl::StatusOr<std::vector<double>> rewards) {
      ASSERT_OK(rewards);
      EXPECT_EQ(*rewards, (std::vector<double>{require_stop ? 0.0 : 1.0, 1, 0}))
          << "the last row has no answer";
    });
  }
}

}  // namespace
}  // namespace taopd::testing
