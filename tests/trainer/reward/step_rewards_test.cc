// The rewards of a step, advantages by their formulas, and the mean of the policy gradient by
// enumeration of every group of responses.
#include "trainer/reward/step_rewards.h"

#include <cmath>

#include "tests/kernels/objective/dense_row.h"
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

// ---- Advantages ---------------------------------------------------------------------------------

TEST(Advantages, AreThoseOfThePapers) {
  const std::vector<double> rewards = {1, 0, 0, 1, 0.5};
  const auto advantages = [&](RewardBaseline baseline, RewardScale scale) {
    return Advantages(rewards, baseline, scale);
  };
  EXPECT_EQ(advantages(RewardBaseline::kNone, RewardScale::kNone), rewards);
  // numpy: r - r.mean(), (r - r.mean()) / (r.std(ddof=1) + 1e-6), and r - the mean of the others.
  const auto group = advantages(RewardBaseline::kGroup, RewardScale::kNone);
  const auto grpo = advantages(RewardBaseline::kGroup, RewardScale::kStd);
  const auto rloo = advantages(RewardBaseline::kLeaveOneOut, RewardScale::kNone);
  const double expected_group[] = {0.5, -0.5, -0.5, 0.5, 0};
  const double expected_rloo[] = {0.625, -0.625, -0.625, 0.625, 0};
  for (size_t i = 0; i < rewards.size(); ++i) {
    EXPECT_NEAR(group[i], expected_group[i], 1e-15) << i;
    EXPECT_NEAR(grpo[i], expected_group[i] / (0.5 + 1e-6), 1e-12) << i;
    EXPECT_NEAR(rloo[i], expected_rloo[i], 1e-15) << i;
  }
}

// A mean of equal numbers may be rounded, which a division by almost zero would blow up.
TEST(Advantages, AGroupWithoutADifferenceHasNone) {
  for (const double reward : {0.1, 1.0, 1e30}) {
    for (const auto& [baseline, scale] :
         {std::pair(RewardBaseline::kGroup, RewardScale::kStd),
          std::pair(RewardBaseline::kGroup, RewardScale::kNone),
          std::pair(RewardBaseline::kLeaveOneOut, RewardScale::kNone)}) {
      for (const double a : Advantages({reward, reward, reward}, baseline, scale)) {
        EXPECT_EQ(a, 0) << reward;
      }
    }
  }
  EXPECT_TRUE(Advantages({}, RewardBaseline::kGroup, RewardScale::kStd).empty());
}

constexpr int32_t kVocabulary = 4;
constexpr int kGroup = 3;
constexpr double kRewards[kVocabulary] = {1, 0, -0.5, 2};

// Calls f(probability, tokens) for every group of responses of one token, drawn from `log_p`.
template <typename F>
void ForGroups(const std::vector<double>& log_p, const F& f) {
  for (int code = 0; code < kVocabulary * kVocabulary * kVocabulary; ++code) {
    std::vector<int32_t> tokens;
    double log_probability = 0;
    for (int i = 0, rest = code; i < kGroup; ++i, rest /= kVocabulary) {
      tokens.push_back(rest % kVocabulary);
      log_probability += log_p[tokens.back()];
    }
    f(std::exp(log_probability), tokens);
  }
}

std::vector<double> GradientOf(const std::vector<double>& logits, double log_behavior,
                               int32_t token, double advantage) {
  DenseRow<double> row;
  row.logits = logits;
  row.sampled = token;
  row.off_policy = true;
  row.log_behavior = log_behavior;
  row.advantage = advantage;
  return Evaluate(ObjectiveTerms(*FindObjective("policy_gradient")), row).gradient;
}

// The gradient of -E[reward] with respect to the logits, by the softmax's derivative.
std::vector<double> TrueGradient(const std::vector<double>& log_p) {
  double mean = 0;
  for (int32_t v = 0; v < kVocabulary; ++v) mean += std::exp(log_p[v]) * kRewards[v];
  std::vector<double> gradient;
  for (int32_t v = 0; v < kVocabulary; ++v)
    gradient.push_back(-std::exp(log_p[v]) * (kRewards[v] - mean));
  return gradient;
}

// Returns the mean over all groups, drawn from `behavior`, of the group's mean gradient.
std::vector<double> MeanGradient(const std::vector<double>& logits,
                                 const std::vector<double>& behavior, RewardBaseline baseline) {
  std::vector<double> mean(kVocabulary, 0.0);
  ForGroups(behavior, [&](double probability, const std::vector<int32_t>& tokens) {
    std::vector<double> rewards;
    for (const int32_t token : tokens) rewards.push_back(kRewards[token]);
    const auto advantages = Advantages(rewards, baseline, RewardScale::kNone);
    for (int i = 0; i < kGroup; ++i) {
      const auto one = GradientOf(logits, behavior[tokens[i]], tokens[i], advantages[i]);
      for (int32_t v = 0; v < kVocabulary; ++v) mean[v] += probability * one[v] / kGroup;
    }
  });
  return mean;
}

void ExpectMeanGradient(const std::vector<double>& logits, const std::vector<double>& behavior) {
  const std::vector<double> truth = TrueGradient(LogSoftmax(logits));
  for (const auto& [baseline, factor] :
       {std::pair(RewardBaseline::kNone, 1.0), std::pair(RewardBaseline::kLeaveOneOut, 1.0),
        std::pair(RewardBaseline::kGroup, (kGroup - 1.0) / kGroup)}) {
    const std::vector<double> mean = MeanGradient(logits, behavior, baseline);
    for (int32_t v = 0; v < kVocabulary; ++v) {
      EXPECT_NEAR(mean[v], factor * truth[v], 1e-13) << NameOf(baseline) << ", logit " << v;
    }
  }
}

TEST(PolicyGradient, IsUnbiasedWithAndWithoutABaseline) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const std::vector<double> logits = RandomLogits(kVocabulary, 1.5, seed);
    ExpectMeanGradient(logits, LogSoftmax(logits));
  }
}

// The second mini-batch of a step comes from the weights before the first update.
TEST(PolicyGradient, IsUnbiasedInTheSecondMiniBatch) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const std::vector<double> before = RandomLogits(kVocabulary, 1.5, seed);
    const std::vector<double> behavior = LogSoftmax(before);
    std::vector<double> after = before;
    const std::vector<double> first = GradientOf(before, behavior[1], 1, 2.0);
    for (int32_t v = 0; v < kVocabulary; ++v) after[v] -= 0.5 * first[v];
    ExpectMeanGradient(after, behavior);
  }
}

// Responses of two tokens: both rows have the advantage of the whole response.
TEST(PolicyGradient, IsUnbiasedOverTheTokensOfAResponse) {
  constexpr int32_t kSize = 3;
  const auto reward = [](int32_t a, int32_t b) { return a == b ? 1.0 + a : 0.25 * b; };
  // The logits of the first token, and of the second after each first one.
  std::vector<std::vector<double>> logits;
  for (uint64_t row = 0; row <= kSize; ++row) logits.push_back(RandomLogits(kSize, 1, row + 7));
  const auto expected_reward = [&] {
    double mean = 0;
    const auto first = LogSoftmax(logits[0]);
    for (int32_t a = 0; a < kSize; ++a) {
      const auto second = LogSoftmax(logits[1 + a]);
      for (int32_t b = 0; b < kSize; ++b) mean += std::exp(first[a] + second[b]) * reward(a, b);
    }
    return mean;
  };
  std::vector<std::vector<double>> mean(1 + kSize, std::vector<double>(kSize, 0.0));
  const auto first = LogSoftmax(logits[0]);
  for (int32_t a = 0; a < kSize; ++a) {
    const auto second = LogSoftmax(logits[1 + a]);
    for (int32_t b = 0; b < kSize; ++b) {
      const double probability = std::exp(first[a] + second[b]);
      const auto of_a = GradientOf(logits[0], first[a], a, reward(a, b));
      const auto of_b = GradientOf(logits[1 + a], second[b], b, reward(a, b));
      for (int32_t v = 0; v < kSize; ++v) {
        mean[0][v] += probability * of_a[v];
        mean[1 + a][v] += probability * of_b[v];
      }
    }
  }
  // Central differences: an error of about the step squared.
  constexpr double kStep = 1e-5, kTolerance = 1e-9;
  for (int32_t row = 0; row <= kSize; ++row) {
    for (int32_t v = 0; v < kSize; ++v) {
      const double at = logits[row][v];
      logits[row][v] = at + kStep;
      const double high = expected_reward();
      logits[row][v] = at - kStep;
      const double low = expected_reward();
      logits[row][v] = at;
      EXPECT_NEAR(mean[row][v], -(high - low) / (2 * kStep), kTolerance) << row << ", " << v;
    }
  }
}

}  // namespace
}  // namespace taopd::testing
