#include "trainer/step/rollouts/rollout_requests.h"

#include <gtest/gtest.h>

#include <set>

namespace taopd::testing {
namespace {

TEST(MakeRolloutRequests, SeedsAreNamedByStepPromptAndSample) {
  TrainConfig config;
  config.rollout.n = 3;
  PromptRecord prompt = {.prompt_ids = {5}};
  std::set<uint64_t> seeds;
  for (int64_t step : {0, 1}) {
    for (const RolloutRequest& request : MakeRolloutRequests(config, step, {&prompt, &prompt}))
      seeds.insert(request.sampling.seed);
  }
  EXPECT_EQ(seeds.size(), 12u);
}

}  // namespace
}  // namespace taopd::testing
