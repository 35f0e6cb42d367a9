// Tests of steps that use a batch more than once: the ratio to the behavior policy, its guards, and
// their metrics.
#include <cmath>
#include <map>
#include <string>

#include "tests/support/status_matchers.h"
#include "tests/trainer/step/tiny_training.h"
#include "trainer/step/kl_probe.h"
#include "trainer/step/loss/forward_backward.h"
#include "trainer/step/scored_batch.h"

namespace taopd::testing {
namespace {

// Returns the metrics of the second step of a run with a rate at which one update moves the policy
// far.
std::map<std::string, double> SecondStep(const std::function<void(TrainConfig&)>& change,
                                         double lr = 3e-2) {
  TinySetting setting;
  setting.config.objective.name = "sampled_token";
  setting.config.optimizer.lr = lr;
  change(setting.config);
  std::map<std::string, double> metrics;
  RunSteps(setting, 2, nullptr, &metrics);
  return metrics;
}

TEST(OffPolicy, OneMiniBatchIsOnPolicy) {
  const auto metrics = SecondStep([](TrainConfig& config) { config.trainer.mini_batch_size = 6; });
  EXPECT_NEAR(metrics.at("policy/effective_sample_size"), 1, 1e-6);
  EXPECT_NEAR(metrics.at("policy/kl_behavior"), 0, 1e-5);
}

TEST(OffPolicy, GuardsAreOffByDefaultAndCountedWhenOn) {
  const auto plain = SecondStep([](TrainConfig&) {});
  EXPECT_LT(plain.at("policy/effective_sample_size"), 0.999);
  EXPECT_GT(plain.at("policy/effective_sample_size"), 0);
  for (const char* name :
       {"policy/truncated_rho", "policy/masked_rho", "policy/vetoed_responses"}) {
    EXPECT_EQ(plain.at(name), 0) << name;
  }
  const auto capped =
      SecondStep([](TrainConfig& config) { config.objective.parameters.max_rho = 1.01; });
  EXPECT_GT(capped.at("policy/truncated_rho"), 0);
  const auto masked = SecondStep([](TrainConfig& config) {
    config.objective.parameters.mask_rho_below = 0.9;
    config.objective.parameters.mask_rho_above = 1.1;
  });
  EXPECT_GT(masked.at("policy/masked_rho"), 0);
  const auto vetoed =
      SecondStep([](TrainConfig& config) { config.objective.veto_rho_below = 0.9; });
  EXPECT_GT(vetoed.at("policy/vetoed_responses"), 0);
  EXPECT_LE(vetoed.at("policy/vetoed_responses"), 9) << "the first mini-batch is on-policy";
  EXPECT_NE(vetoed.at("loss/mean"), plain.at("loss/mean"));
}

// Changes the behavior log-probs of responses. The gradient of an objective with a score function
// is multiplied by rho, and a vetoed response has no gradient.
class MovedBehavior : public ::testing::Test {
 protected:
  MovedBehavior() : training_(TinySetting()) {
    const auto batch = training_.NextScored(
        MakeSupportOptions(*training_.context.config, kTinyVocabulary), "moved");
    items_ = {batch->item(0), batch->item(1)};
  }
  // Returns the gradient of lm_head for the responses, whose rho are multiplied by rho_0 and rho_1.
  at::Tensor Gradient(double rho_0, double rho_1, const ForwardBackwardOptions& options,
                      RowSums* sums, const char* objective = "sampled_token") {
    std::vector<ScoredRollout> moved = items_;
    for (float& value : moved[0].rollout.behavior_log_probs) value -= std::log(rho_0);
    for (float& value : moved[1].rollout.behavior_log_probs) value -= std::log(rho_1);
    return Gradient({0.5, 0.5}, moved, options, sums, objective);
  }
  at::Tensor Gradient(const std::vector<double>& weights, const std::vector<ScoredRollout>& items,
                      const ForwardBackwardOptions& options, RowSums* sums,
                      const char* objective = "sampled_token") {
    const HeadOptions head = {.objective = *FindObjective(objective)};
    EXPECT_OK(ForwardBackward(training_.student().get(), head, {&items[0], &items[1]}, weights,
                              sums, options));
    at::Tensor gradient;
    for (auto& [name, parameter] : training_.student()->Parameters()) {
      if (name.find("embed_tokens") != std::string::npos ||
          name.find("lm_head") != std::string::npos) {
        gradient = parameter.grad().clone();
      }
      parameter.mutable_grad().reset();
    }
    return gradient;
  }
  TinyTraining training_;
  std::vector<ScoredRollout> items_;
};

TEST_F(MovedBehavior, TheGradientIsMultipliedByRho) {
  RowSums sums;
  const at::Tensor one = Gradient(1, 1, {}, &sums);
  const double loss = sums.weighted_loss;
  RowSums twice;
  const at::Tensor two = Gradient(2, 2, {}, &twice);
  EXPECT_NEAR(twice.weighted_loss, 2 * loss, 1e-4 * std::abs(loss));
  EXPECT_TRUE(at::allclose(two, 2 * one, 1e-4, 1e-6));
  EXPECT_NEAR(twice.rho, 2 * static_cast<double>(twice.num_rows), 1e-3);
  // ta_opd has no such factor.
  RowSums ta_one, ta_two;
  const at::Tensor plain = Gradient(1, 1, {}, &ta_one, "ta_opd");
  EXPECT_TRUE(at::equal(Gradient(2, 2, {}, &ta_two, "ta_opd"), plain));
  EXPECT_EQ(ta_one.weighted_loss, ta_two.weighted_loss);
}

TEST_F(MovedBehavior, AVetoLeavesOutTheWholeResponseAndNoOther) {
  const ForwardBackwardOptions options = {.veto_rho_below = 1e-4};
  RowSums both, veto, fine;
  const at::Tensor gradient = Gradient(1e-5, 1, options, &veto);
  EXPECT_EQ(veto.num_vetoed, 1);
  const at::Tensor free = Gradient(1e-3, 1, options, &fine);
  EXPECT_EQ(fine.num_vetoed, 0);
  // The result is as without the first response. Without the veto, its rho of 1e-5 would still
  // leave a trace.
  RowSums second;
  items_[0] = items_[1];
  const at::Tensor twice = Gradient(1, 1, {}, &second);
  EXPECT_TRUE(at::allclose(gradient, twice / 2, 1e-4, 1e-7));
  EXPECT_NEAR(veto.weighted_loss, second.weighted_loss / 2, 1e-6);
  EXPECT_GT((free - gradient).abs().max().item<double>(), 0);
}

// ---- The distance to the start ------------------------------------------------------------------

TEST(KlProbe, IsZeroAtTheStartAndGrows) {
  TinySetting setting;
  setting.config.optimizer.lr = 1e-2;
  TinyTraining training(setting);
  const StepContext& context = training.context;
  const std::vector<Rollout> rollouts = TinyTraining(setting).Step(0, 10).rollouts;
  const std::vector<Rollout> probe(rollouts.begin(), rollouts.begin() + 8);
  ASSERT_OK_AND_ASSIGN(const std::vector<Rollout> again, ReadProbe(WriteProbe(probe)));
  const auto measure = [&](int64_t budget) {
    return MeasureKlToStart(training.student().get(), context.head, again, budget);
  };
  EXPECT_NEAR(measure(1000), 0, 1e-6);
  training.Step(0, 10);
  const double near = measure(1000);
  EXPECT_GT(near, 1e-4);
  EXPECT_NEAR(measure(1), near, 1e-6);
  for (int step = 1; step < 6; ++step) training.Step(step, 10);
  EXPECT_GT(measure(1000), near);
  for (const char* text : {"", "{}", "[1]", "[{}]",
                           R"([{"prompt_ids":[1],"response_ids":[1,2],"log_probs":[0.5]}])"}) {
    EXPECT_ERROR(ReadProbe(text), kDataLoss, "probe");
  }
}

// A step's scores may still be pending when its forward pass begins.
TEST_F(MovedBehavior, ScoresAreReadBehindTheForwardPassAndCarryTheirTeachersWeight) {
  RowSums expected_sums;
  const at::Tensor expected = Gradient({0.5 * 3.0, 0.5}, items_, {}, &expected_sums);

  std::vector<ScoredRollout> late = items_;
  for (ScoredRollout& item : late) item.scores = SupportScores();
  ForwardBackwardOptions options;
  options.before_scores = [&] {
    for (size_t i = 0; i < late.size(); ++i) late[i].scores = items_[i].scores;
    late[0].scores.weight = 3.0;
    return absl::OkStatus();
  };
  RowSums sums;
  EXPECT_TRUE(at::equal(Gradient({0.5, 0.5}, late, options, &sums), expected));
  EXPECT_EQ(sums.weighted_loss, expected_sums.weighted_loss);

  options.before_scores = [] { return Unavailable("the teacher is gone"); };
  RowSums nothing;
  const HeadOptions head = {.objective = *FindObjective("sampled_token")};
  EXPECT_ERROR(ForwardBackward(training_.student().get(), head, {&late[0], &late[1]}, {0.5, 0.5},
                               &nothing, options),
               kUnavailable, "the teacher is gone");
  EXPECT_EQ(nothing.num_rows, 0);
  for (const auto& [name, parameter] : training_.student()->Parameters()) {
    EXPECT_FALSE(parameter.grad().defined()) << name;
  }
}

}  // namespace
}  // namespace taopd::testing
