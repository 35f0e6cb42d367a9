// The estimate of a step against numbers worked out by hand.
#include "common/memory/step_estimate.h"
#include "tests/support/status_matchers.h"

#include <gtest/gtest.h>

namespace taopd::testing {
namespace {

// Sums and quotients of doubles in another order.
constexpr double kRelative = 1e-12;

StepWork Work() {
  return {.num_parameters = 1000,
          .active_parameters = 500,
          .bytes_per_weight = 2,
          .kv_bytes_per_token = 10,
          .num_sequences = 16,
          .max_running = 8,
          .prompt_tokens = 100,
          .response_tokens = 40,
          .rollouts_of_prompt = 4,
          .updates = 2,
          .optimizer_bytes_per_parameter = 30};
}

void ExpectSeconds(const StepEstimate& estimate, const std::vector<double>& expected) {
  ASSERT_EQ(estimate.lines.size(), expected.size());
  double sum = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(estimate.lines[i].seconds, expected[i], kRelative * (1 + expected[i]))
        << estimate.lines[i].name;
    sum += expected[i];
  }
  EXPECT_NEAR(estimate.seconds, sum, kRelative * sum);
}

TEST(StepEstimateTest, OneRankSendsNothing) {
  const StepEstimate estimate = EstimateStep(Work(), {1e6, 1e5, 0});
  // 4 prompts of 100 tokens; 2 turns of 8 sequences at 120 tokens; 16 sequences of 140 tokens.
  ExpectSeconds(estimate, {2 * 500.0 * 400 / 1e6, 2 * 40 * (2000 + 8 * 120 * 10) / 1e5,
                           6 * 500.0 * 2240 / 1e6, 0, 2 * 1000 * 30 / 1e5, 0});
  EXPECT_EQ(estimate.sent_bytes, 0);
  EXPECT_NEAR(estimate.tokens_per_second, 2240 / estimate.seconds, 1e-9);
}

TEST(StepEstimateTest, AdaptersLeaveOutTheGradientsOfTheWeights) {
  StepWork work = Work();
  work.adapter_parameters = 40;
  work.num_ranks = 4;
  const StepEstimate estimate = EstimateStep(work, {1e6, 1e5, 1e4});
  // 30 of the 40 values go to others, in float32 both ways.
  ExpectSeconds(estimate,
                {2 * 500.0 * 100 / 1e6, 40 * (2000 + 4 * 120 * 10) / 1e5, 4 * 500.0 * 560 / 1e6,
                 2 * 4 * 30 / 1e4, 2 * 10 * 30 / 1e5, 2 * 4 * 30 / 1e4});
  EXPECT_EQ(estimate.sent_bytes, 2 * (4 + 4) * 30);
  EXPECT_THAT(EstimateText(estimate), HasSubstr("4 P S (p + r) FLOP"));
  EXPECT_THAT(EstimateText(estimate), HasSubstr("4 A (N - 1) / N bytes, all-gather"));
  work.recomputes_layers = true;
  EXPECT_NEAR(EstimateStep(work, {1e6, 1e5, 1e4}).lines[2].seconds, 6 * 500.0 * 560 / 1e6, 1e-9);
}

TEST(StepEstimateTest, RanksShareSequencesAndOptimizerAndPayForTheNetwork) {
  StepWork work = Work();
  work.num_ranks = 4;
  work.recomputes_layers = true;
  const StepEstimate estimate = EstimateStep(work, {1e6, 1e5, 1e4});
  // 4 sequences a rank, of one prompt; 750 of 1000 parameters go to others.
  ExpectSeconds(estimate,
                {2 * 500.0 * 100 / 1e6, 40 * (2000 + 4 * 120 * 10) / 1e5, 8 * 500.0 * 560 / 1e6,
                 2 * 4 * 750 / 1e4, 2 * 250 * 30 / 1e5, 2 * 2 * 750 / 1e4});
  EXPECT_EQ(estimate.sent_bytes, 2 * (4 + 2) * 750);
}

TEST(StepEstimateTest, ReadingTheWeightsIsTheLeastAndArithmeticCanBeTheLimit) {
  StepWork work = Work();
  work.prompt_tokens = 1;
  EXPECT_NEAR(EstimateStep(work, {1e9, 1e5, 0}).lines[0].seconds, 2000 / 1e5, kRelative);
  EXPECT_NEAR(EstimateStep(work, {1e3, 1e9, 0}).lines[1].seconds, 2 * 40 * 2 * 500.0 * 8 / 1e3,
              1e-9);
}

TEST(StepEstimateTest, TextHasEveryLineAndTheSum) {
  const StepEstimate estimate = EstimateStep(Work(), {1e6, 1e5, 0});
  const std::string text = EstimateText(estimate);
  for (const EstimateLine& line : estimate.lines) {
    EXPECT_THAT(text, HasSubstr(line.name));
  }
  EXPECT_THAT(text, HasSubstr("tokens/s"));
}

// The optimizer's line at the rate of the memory that it reads and writes.
TEST(StepEstimateTest, UpdatesOnTheHostGoAtItsRate) {
  StepWork work = Work();
  const DeviceRates rates = {1e6, 1e5, 0, 1e4};
  const auto seconds = [&] {
    for (const EstimateLine& line : EstimateStep(work, rates).lines) {
      if (line.name == "optimizer") return line.seconds;
    }
    return 0.0;
  };
  const double on_device = seconds();
  work.updates_on_host = true;
  EXPECT_GT(on_device, 0);
  EXPECT_NEAR(seconds(), 10 * on_device, kRelative * on_device);
}

}  // namespace
}  // namespace taopd::testing
