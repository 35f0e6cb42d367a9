#include "common/engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/random.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> RandomLogits(int64_t size, uint64_t seed, double scale = 2.0) {
  RandomStream random(seed);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = static_cast<float>(scale * random.NextNormal());
  return logits;
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowestOfEquals) {
  const SamplingParams params = {.temperature = 0.0f, .top_k = 3, .top_p = 0.1f};
  Sampler sampler;
  const std::vector<float> logits = {0.0f, 2.0f, 1.0f, 2.0f};
  ASSERT_OK_AND_ASSIGN(const SampledToken token, sampler.Sample({logits}, params, nullptr, 3));
  EXPECT_EQ(token.id, 1);
  const double sum = 1.0 + std::exp(1.0) + 2.0 * std::exp(2.0);  // under temperature 1
  EXPECT_NEAR(token.log_prob, 2.0 - std::log(sum), 1e-6);
}

TEST(Sampler, ADrawDependsOnSeedAndStepOnly) {
  const std::vector<float> logits = RandomLogits(64, 7, 0.5);
  SamplingParams params = {.seed = 11};
  Sampler one;
  std::vector<int32_t> forward;
  for (int i = 0; i < 32; ++i) forward.push_back(one.Sample({logits}, params, nullptr, i)->id);
  for (int i = 31; i >= 0; --i) {
    Sampler fresh;
    EXPECT_EQ(fresh.Sample({logits}, params, nullptr, i)->id, forward[i]);
  }
  params.seed = 12;
  int num_equal = 0;
  for (int i = 0; i < 32; ++i)
    num_equal += one.Sample({logits}, params, nullptr, i)->id == forward[i];
  EXPECT_LT(num_equal, 10);
}

// Draws would depend on each other if two steps had a word of the stream in common.
TEST(Sampler, StepsTakeTheUniformsOfOneStreamInTurn) {
  RandomStream stream(11);
  for (int64_t step = 0; step < 100; ++step) {
    EXPECT_EQ(UniformOfStep(11, step), stream.NextUniform()) << "step " << step;
  }
}

TEST(Sampler, TinyTemperaturesAreGreedy) {
  const std::vector<float> logits = RandomLogits(50, 8);
  const SamplingParams params = {.temperature = 1e-38f};
  Sampler sampler;
  const auto largest = std::max_element(logits.begin(), logits.end()) - logits.begin();
  ASSERT_OK_AND_ASSIGN(const SampledToken token, sampler.Sample({logits}, params, nullptr, 0));
  EXPECT_EQ(token.id, largest);
  EXPECT_EQ(token.log_prob, 0.0f);
}

TEST(Sampler, RefusesLogitsThatAreNotFinite) {
  Sampler sampler;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<float>& logits :
       {std::vector<float>{nan, 1.0f}, std::vector<float>{1.0f, nan},
        std::vector<float>{1.0f, kInfinity}, std::vector<float>{-kInfinity, -kInfinity}}) {
    for (const float temperature : {0.0f, 1.0f}) {
      const SamplingParams params = {.temperature = temperature};
      EXPECT_ERROR(sampler.Sample({logits}, params, nullptr, 0), kInternal, "not finite");
    }
  }
}

}  // namespace
}  // namespace taopd::testing
