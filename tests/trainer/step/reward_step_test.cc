// Tests of steps with rewards, with masked responses and with given responses.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "tests/common/dist/rank_threads.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/step/tiny_training.h"
#include "trainer/step/rollouts/rollout_requests.h"
#include "trainer/teacher/no_teacher_client.h"

namespace taopd::testing {
namespace {

// Returns the share of the even ones of some token ids.
template <typename Ids>
double EvenShare(const Ids& ids) {
  const auto num_even = std::count_if(ids.begin(), ids.end(), [](auto id) { return id % 2 == 0; });
  return static_cast<double>(num_even) / static_cast<double>(ids.size());
}

// The reward of a response is the share of its even token ids. Answers after `num_held` requests
// have come, the last one first. The answers are `error` unless that is OK.
class EvenIds final : public RewardSource {
 public:
  explicit EvenIds(size_t num_held = 1, absl::Status error = absl::OkStatus())
      : num_held_(num_held), error_(std::move(error)) {}
  absl::Status Connect(absl::Duration) override { return absl::OkStatus(); }
  void Reward(std::vector<RewardSample> samples,
              std::function<void(absl::StatusOr<std::vector<double>>)> done) override {
    std::vector<double> rewards;
    for (const RewardSample& sample : samples) rewards.push_back(EvenShare(sample.response));
    std::vector<std::function<void()>> ready;
    {
      absl::MutexLock lock(&mutex_);
      held_.push_back(
          [this, done = std::move(done), rewards] { error_.ok() ? done(rewards) : done(error_); });
      if (held_.size() < num_held_) return;
      ready.swap(held_);
    }
    for (auto answer = ready.rbegin(); answer != ready.rend(); ++answer) (*answer)();
  }
  RewardStats stats() const override { return {}; }

 private:
  const size_t num_held_;
  const absl::Status error_;
  absl::Mutex mutex_;
  std::vector<std::function<void()>> held_ ABSL_GUARDED_BY(mutex_);
};

TinySetting RewardAlone() {
  TinySetting setting;
  setting.config.objective.name = "policy_gradient";
  setting.config.teacher.kind = TeacherKind::kNone;
  setting.config.reward.grader = "exact";  // switches rewards on; the test's source judges
  return setting;
}

// A run with a source of rewards, and without a teacher if its kind is none.
struct RewardedTraining : TinyTraining {
  RewardedTraining(const TinySetting& setting, RewardSource* source)
      : TinyTraining(setting),
        rewards{source, &tokenizer, setting.config.reward.baseline, setting.config.reward.scale} {
    context.rewards = &rewards;
    if (setting.config.teacher.kind == TeacherKind::kNone) context.teacher = &no_teacher;
  }
  ByteTokenizer tokenizer;
  NoTeacherClient no_teacher;
  const StepRewardOptions rewards;
};

// Runs steps with that source of rewards. `prepare` may change the context.
std::vector<std::map<std::string, double>> RunRewarded(
    const TinySetting& setting, int num_steps, RewardSource* source,
    std::shared_ptr<Decoder>* trained = nullptr,
    const std::function<void(StepContext&)>& prepare = [](StepContext&) {}) {
  RewardedTraining training(setting, source);
  prepare(training.context);
  std::vector<std::map<std::string, double>> metrics;
  for (int step = 0; step < num_steps; ++step)
    metrics.push_back(ByName(training.Step(step, num_steps)));
  if (trained != nullptr) *trained = training.student();
  return metrics;
}

TEST(RewardStep, ARewardAloneIsLearned) {
  TinySetting setting = RewardAlone();
  setting.config.optimizer.lr = 1e-2;
  EvenIds source;
  const auto metrics = RunRewarded(setting, 40, &source);
  EXPECT_LT(metrics[0].at("reward/mean"), 0.65);
  EXPECT_GT(metrics[39].at("reward/mean"), 0.85);
  EXPECT_GT(metrics[0].at("reward/std"), 0.05);
  EXPECT_GE(metrics[0].at("reward/no_signal_groups"), 0);
  EXPECT_EQ(metrics[0].at("reward/clipped_share"), 0);
}

TEST(RewardStep, TheMetricsAreThoseOfTheResponses) {
  EvenIds source;
  RewardedTraining training(RewardAlone(), &source);
  const StepResult result = training.Step(0, 1);
  const auto metrics = ByName(result);
  double sum = 0, square = 0, num_equal = 0;
  for (size_t first = 0; first < result.rollouts.size(); first += 3) {
    std::vector<double> group;
    for (size_t i = first; i < first + 3; ++i) {
      group.push_back(EvenShare(result.rollouts[i].response_ids));
      sum += group.back();
      square += group.back() * group.back();
    }
    num_equal += group[0] == group[1] && group[1] == group[2] ? 1 : 0;
  }
  EXPECT_NEAR(metrics.at("reward/mean"), sum / 18, 1e-12);
  EXPECT_NEAR(metrics.at("reward/std"), std::sqrt(square / 18 - sum * sum / 324), 1e-12);
  EXPECT_EQ(metrics.at("reward/no_signal_groups"), num_equal / 6);
}

TEST(RewardStep, BesideAnObjectiveTheTermsAdd) {
  const auto first_loss = [](const std::string& objective, double weight) {
    TinySetting setting;
    setting.config.objective.name = objective;
    setting.config.trainer.mini_batch_size = 6;
    if (weight != 0) {
      setting.config.reward.grader = "exact";
      setting.config.reward.weight = weight;
      setting.config.reward.scale = RewardScale::kNone;
      setting.config.reward.baseline = RewardBaseline::kNone;
    }
    EvenIds source;
    return RunRewarded(setting, 1, weight == 0 ? nullptr : &source, nullptr,
                       [&](StepContext& context) {
                         if (weight == 0) context.rewards = nullptr;
                       })[0];
  };
  const auto distilled = first_loss("ta_opd", 0), both = first_loss("ta_opd", 0.5);
  const double reward_part = both.at("loss/term/policy_gradient");
  EXPECT_NEAR(both.at("loss/row_mean"), distilled.at("loss/row_mean") + reward_part, 1e-6);
  EXPECT_EQ(both.at("loss/term/ta_opd"), distilled.at("loss/row_mean"));
  // On-policy and without a baseline, the term is minus the weighted reward of each row.
  EXPECT_LT(reward_part, -0.1);
  const auto full = first_loss("full", 0.5);
  EXPECT_NEAR(full.at("loss/term/policy_gradient"), reward_part, 1e-6);
}

TEST(RewardStep, TheOrderOfAnswersChangesNothing) {
  EvenIds in_order, reversed(6);
  std::shared_ptr<Decoder> one, other;
  const auto a = RunRewarded(RewardAlone(), 3, &in_order, &one);
  const auto b = RunRewarded(RewardAlone(), 3, &reversed, &other);
  for (int step = 0; step < 3; ++step) EXPECT_EQ(a[step].at("loss/mean"), b[step].at("loss/mean"));
  EXPECT_TRUE(SameWeights(*one, *other));
}

TEST(RewardStep, RanksLearnTheSame) {
  std::vector<std::vector<std::shared_ptr<Decoder>>> trained;
  std::vector<std::vector<double>> rewards;
  for (const int64_t world : {1, 2}) {
    trained.emplace_back(world);
    rewards.emplace_back();
    OnRanks(world, ProcessGroupOptions(), [&, world](ProcessGroup& group) {
      TinySetting setting = RewardAlone();
      setting.config.data.train_batch_size = 4;
      setting.config.trainer.mini_batch_size = 2;
      setting.num_threads = 1;
      setting.shard.layout.num_shards = world;
      setting.shard.shard = group.rank();
      EvenIds source;
      const auto metrics = RunRewarded(setting, 3, &source, &trained.back()[group.rank()],
                                       [&](StepContext& context) {
                                         context.group = &group;
                                         context.shares = *Shares::Make(2, group.rank(), world);
                                       });
      if (group.is_root()) {
        for (const auto& step : metrics) rewards.back().push_back(step.at("reward/mean"));
      }
      group.Leave();
    });
  }
  for (const auto& student : trained[1]) EXPECT_TRUE(SameWeights(*trained[0][0], *student));
  for (size_t step = 0; step < 3; ++step) EXPECT_NEAR(rewards[0][step], rewards[1][step], 1e-12);
}

TEST(RewardStep, TheClipActsOnTheSecondMiniBatchAndIsCounted) {
  TinySetting setting = RewardAlone();
  setting.config.optimizer.lr = 3e-2;
  const auto run = [&](double clip, int64_t mini_batch_size) {
    setting.config.reward.clip_low = setting.config.reward.clip_high = clip;
    setting.config.trainer.mini_batch_size = mini_batch_size;
    EvenIds source;
    return RunRewarded(setting, 1, &source)[0].at("reward/clipped_share");
  };
  EXPECT_EQ(run(0, 3), 0);
  EXPECT_GT(run(0.01, 3), 0.05);
  EXPECT_EQ(run(0.01, 6), 0) << "the only mini-batch is on-policy";
}

TEST(RewardStep, AFailureOfTheSourceAbandonsTheStep) {
  EvenIds source(1, DataLoss("no reward of \"x\""));
  TinySetting setting;
  setting.config.reward.grader = "exact";
  RewardedTraining training(setting, &source);
  EXPECT_ERROR(TrainOneStep(training.context, 0, 1e-3, training.NextPrompts()), kDataLoss,
               "rewards of the rollouts from");
  EXPECT_EQ(training.optimizer().num_updates(), 0);
  EXPECT_TRUE(SameWeights(*training.student(), *MakeTinyStudent()));
}

// ---- Masked responses ---------------------------------------------------------------------------

TEST(MaskTruncated, CutResponsesHaveNoPartInTheLoss) {
  TinySetting setting;
  const auto run = [&](bool mask) {
    setting.config.rollout.mask_truncated = mask;
    TinyTraining training(setting);
    return ByName(training.Step(0, 1));
  };
  const auto plain = run(false), masked = run(true);
  EXPECT_FALSE(plain.contains("rollout/masked_share"));
  EXPECT_GT(masked.at("rollout/truncated_share"), 0.2);
  EXPECT_LT(masked.at("rollout/truncated_share"), 1);
  EXPECT_EQ(masked.at("rollout/masked_share"), masked.at("rollout/truncated_share"));
  EXPECT_NE(masked.at("loss/mean"), plain.at("loss/mean"));
}

// ---- Given responses ----------------------------------------------------------------------------

class GivenResponses : public ::testing::Test {
 protected:
  // Runs a step on prompts with responses of their own.
  StepResult Step(const TinySetting& setting, std::shared_ptr<Decoder>* trained = nullptr) {
    TinyTraining training(setting);
    StepResult result = StepOf(&training);
    if (trained != nullptr) *trained = training.student();
    return result;
  }
  StepResult StepOf(TinyTraining* training) {
    std::vector<const PromptRecord*> prompts;
    for (const PromptRecord* prompt : training->NextPrompts()) {
      records_.push_back(std::make_unique<PromptRecord>(*prompt));
      records_.back()->response_ids = {5, static_cast<int32_t>(prompts.size() + 6), 2};
      prompts.push_back(records_.back().get());
    }
    auto result = TrainOneStep(training->context, 0, 1e-3, prompts);
    EXPECT_OK(result);
    return result.ok() ? *std::move(result) : StepResult();
  }
  static TinySetting Setting(const std::string& objective, double fraction) {
    TinySetting setting;
    setting.config.objective.name = objective;
    setting.config.data.response_key = "response";
    setting.config.data.offpolicy_fraction = fraction;
    return setting;
  }
  std::vector<std::unique_ptr<PromptRecord>> records_;
};

TEST_F(GivenResponses, AShareOfThePromptsIsTrainedOnThem) {
  const StepResult result = Step(Setting("ta_opd", 0.34));
  const auto metrics = ByName(result);
  EXPECT_NEAR(metrics.at("data/offpolicy_share"), 2.0 / 6, 1e-12);
  EXPECT_EQ(result.rollouts.size(), 12u) << "given responses are no rollouts";
  EXPECT_EQ(result.prompts.size(), 12u);
  EXPECT_EQ(metrics.at("rollout/tokens"), metrics.at("rollout/response_length_mean") * 12);
  EXPECT_NEAR(metrics.at("policy/kl_behavior"), 0, 0.1);
  EXPECT_TRUE(std::isfinite(metrics.at("policy/effective_sample_size")));
  for (const Rollout& rollout : result.rollouts) EXPECT_FALSE(rollout.is_given);
}

// Without a rollout, sc_ta_opd is ta_opd, and the loss is that of the given tokens.
TEST_F(GivenResponses, ScTaOpdIsTaOpdOnThem) {
  std::shared_ptr<Decoder> sc, ta;
  const auto sc_metrics = ByName(Step(Setting("sc_ta_opd", 1), &sc));
  const auto ta_metrics = ByName(Step(Setting("ta_opd", 1), &ta));
  EXPECT_EQ(sc_metrics.at("loss/mean"), ta_metrics.at("loss/mean"));
  EXPECT_TRUE(SameWeights(*sc, *ta));
  EXPECT_EQ(sc_metrics.at("data/offpolicy_share"), 1);
  EXPECT_GT(Step(Setting("ta_opd", 1)).model_flops, 0) << "they are trained on";
  EXPECT_EQ(sc_metrics.at("rollout/tokens"), 0);
}

TEST_F(GivenResponses, RewardsLeaveThemOut) {
  TinySetting setting = Setting("policy_gradient", 0.5);
  setting.config.teacher.kind = TeacherKind::kNone;
  setting.config.reward.grader = "exact";
  EvenIds source;
  RewardedTraining training(setting, &source);
  const StepResult result = StepOf(&training);
  double sum = 0;
  for (const Rollout& rollout : result.rollouts) sum += EvenShare(rollout.response_ids);
  ASSERT_EQ(result.rollouts.size(), 9u);
  EXPECT_NEAR(ByName(result).at("reward/mean"), sum / 9, 1e-12);
}

TEST_F(GivenResponses, TheChoiceIsThatOfTheStepsSeed) {
  TrainConfig config = TinyConfig();
  config.data.train_batch_size = 40;
  config.data.offpolicy_fraction = 0.25;
  std::vector<int> times(40);
  for (int64_t step = 0; step < 200; ++step) {
    const std::vector<bool> chosen = OffPolicyPrompts(config, step);
    EXPECT_EQ(chosen, OffPolicyPrompts(config, step));
    EXPECT_EQ(std::count(chosen.begin(), chosen.end(), true), 10) << step;
    for (size_t i = 0; i < chosen.size(); ++i) times[i] += chosen[i] ? 1 : 0;
  }
  // 50 are expected of 200 draws, with a standard deviation of 6.
  for (const int count : times) EXPECT_NEAR(count, 50, 30);
  EXPECT_NE(OffPolicyPrompts(config, 0), OffPolicyPrompts(config, 1));
}

}  // namespace
}  // namespace taopd::testing
