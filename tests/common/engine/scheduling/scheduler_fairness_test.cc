// Tests of how many steps the work of one client waits for that of others.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/random.h"
#include "tests/common/engine/scheduling/scheduled_engine.h"

namespace taopd::testing {
namespace {

std::vector<int32_t> RandomPrompt(int64_t length, RandomStream* random) {
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < length; ++i) prompt.push_back(random->NextBelow(5));
  return prompt;
}

InferenceRequest Generation(const std::string& client, std::vector<int32_t> prompt,
                            int64_t max_new_tokens, uint64_t seed) {
  InferenceRequest request = {
      .token_ids = std::move(prompt), .sampling = SamplingParams(), .client = client};
  request.sampling->max_new_tokens = max_new_tokens;
  request.sampling->seed = seed;
  return request;
}

InferenceRequest Score(const std::string& client, std::vector<int32_t> prompt) {
  return {.token_ids = std::move(prompt), .score = ScoreParams(), .client = client};
}

SchedulerLimits RandomLimits(RandomStream* random) {
  SchedulerLimits limits;
  limits.block_tokens = 4;
  limits.num_blocks = 24 + random->NextBelow(200);
  limits.max_num_seqs = 1 + random->NextBelow(48);
  limits.max_num_batched_tokens = 16 + random->NextBelow(80);
  limits.prefix_caching = random->NextBelow(3) > 0;
  return limits;
}

// Lets one client keep the engine as full as possible with rollouts of one prompt, long prompts or
// scores, and with more of them waiting.
void Flood(const SchedulerLimits& limits, uint64_t kind, RandomStream* random,
           ScheduledEngine* engine) {
  const int64_t pool_tokens = limits.num_blocks * limits.block_tokens;
  const std::vector<int32_t> rollouts = RandomPrompt(1 + random->NextBelow(20), random);
  while (engine->num_live() < 2 * limits.max_num_seqs + 20) {
    const bool scores = kind == 2 || (kind == 3 && random->NextBelow(2) == 0);
    const bool long_prompt = kind == 1 || (kind == 3 && random->NextBelow(2) == 0);
    const int64_t longest = std::max<int64_t>(2, pool_tokens - 60);
    const int64_t length = long_prompt ? 2 + random->NextBelow(longest) : 0;
    if (scores) {
      engine->Add(Score("flood", RandomPrompt(std::max<int64_t>(2, length), random)));
    } else {
      engine->Add(Generation("flood", long_prompt ? RandomPrompt(length, random) : rollouts,
                             20 + random->NextBelow(35), random->NextU64()));
    }
  }
}

void NewcomerIsServed(uint64_t seed, int64_t* most_steps, uint64_t* num_preempted) {
  RandomStream random(seed);
  const SchedulerLimits limits = RandomLimits(&random);
  ScheduledEngine engine(limits);
  const uint64_t kind = random.NextBelow(4);
  for (int step = 0; step < 60; ++step) {
    Flood(limits, kind, &random, &engine);
    engine.Step();
  }
  for (int request = 0; request < 12; ++request) {
    const int64_t length = 2 + random.NextBelow(limits.max_num_batched_tokens / 4);
    std::vector<int32_t> prompt = RandomPrompt(length, &random);
    const bool scores = random.NextBelow(2) == 0;
    const RequestHandle handle =
        engine.Add(scores ? Score("newcomer", std::move(prompt))
                          : Generation("newcomer", std::move(prompt), 1, random.NextU64()));
    while (!engine.results().contains(handle) && !::testing::Test::HasFatalFailure()) {
      Flood(limits, kind, &random, &engine);
      engine.Step();
    }
    const int64_t num_steps = engine.results().at(handle).num_steps;
    *most_steps = std::max(*most_steps, num_steps);
    EXPECT_LE(num_steps, 3) << "seed " << seed << ", kind " << kind << ", request " << request
                            << ", slots " << limits.max_num_seqs << ", blocks " << limits.num_blocks
                            << ", budget " << limits.max_num_batched_tokens << ", rows " << length
                            << (scores ? ", score" : ", completion");
    const uint64_t pause = random.NextBelow(6);
    for (uint64_t step = 0; step < pause; ++step) {
      Flood(limits, kind, &random, &engine);
      engine.Step();
    }
  }
  *num_preempted += engine.scheduler().stats().num_preempted;
}

TEST(SchedulerFairness, AShortRequestOfANewcomerIsDoneWithinThreeStepsWhateverAnotherClientDoes) {
  int64_t most_steps = 0;
  uint64_t num_preempted = 0;
  for (uint64_t seed = 0; seed < 400 && !HasFailure(); ++seed)
    NewcomerIsServed(seed, &most_steps, &num_preempted);
  EXPECT_EQ(most_steps, 3);
  EXPECT_GT(num_preempted, 1000u);
}

// A client with longer work gets its part of slots and blocks while another one fills the engine.
TEST(SchedulerFairness, TwoClientsWithEqualDemandsGenerateAtTheSameRate) {
  for (uint64_t seed = 0; seed < 40 && !HasFailure(); ++seed) {
    RandomStream random(seed);
    SchedulerLimits limits = RandomLimits(&random);
    limits.max_num_seqs = std::max<int64_t>(8, limits.max_num_seqs);
    ScheduledEngine engine(limits);
    std::map<std::string, int64_t> num_tokens;
    const auto fill = [&](const std::string& client, int64_t num_live) {
      while (engine.num_live() < num_live)
        engine.Add(Generation(client, RandomPrompt(8, &random), 40, random.NextU64()));
    };
    fill("early", 60);
    for (int step = 0; step < 20; ++step) engine.Step();
    fill("late", 400);
    for (int step = 0; step < 100; ++step) {
      const StepPlan plan = engine.Step();
      if (step < 10) continue;
      for (const RequestHandle handle : engine.StepHandles())
        ++num_tokens[handle <= 60 ? "early" : "late"];
    }
    EXPECT_GT(num_tokens["late"], num_tokens["early"] / 2) << "seed " << seed;
  }
}

TEST(SchedulerFairness, EveryAcceptedSequenceFinishesWhileNewClientsKeepComing) {
  int64_t longest = 0;
  for (uint64_t seed = 0; seed < 12 && !HasFailure(); ++seed) {
    RandomStream random(seed);
    const SchedulerLimits limits = RandomLimits(&random);
    const int64_t pool_tokens = limits.num_blocks * limits.block_tokens;
    ScheduledEngine engine(limits);
    std::vector<RequestHandle> old;
    // The work takes up to the whole pool; then come clients that appear once.
    for (int i = 0; i < 30; ++i) {
      const std::string client = "old " + std::to_string(random.NextBelow(5));
      const int64_t length = 2 + random.NextBelow(pool_tokens - 20);
      old.push_back(
          engine.Add(random.NextBelow(3) == 0
                         ? Score(client, RandomPrompt(length + random.NextBelow(30), &random))
                         : Generation(client, RandomPrompt(length, &random),
                                      1 + random.NextBelow(20), random.NextU64())));
    }
    for (int64_t step = 0; step < 40000; ++step) {
      while (engine.num_live() < 50) {
        const std::string client = "new " + std::to_string(random.NextU64());
        engine.Add(random.NextBelow(2) == 0
                       ? Score(client, RandomPrompt(2 + random.NextBelow(20), &random))
                       : Generation(client, RandomPrompt(1 + random.NextBelow(20), &random),
                                    1 + random.NextBelow(20), random.NextU64()));
      }
      engine.Step();
      const bool done = std::all_of(old.begin(), old.end(), [&](RequestHandle handle) {
        return engine.results().contains(handle);
      });
      if (done) break;
    }
    for (const RequestHandle handle : old) {
      ASSERT_TRUE(engine.results().contains(handle)) << "seed " << seed << ", request " << handle;
      longest = std::max(longest, engine.results().at(handle).num_steps);
    }
  }
  EXPECT_LT(longest, 20000);
}

}  // namespace
}  // namespace taopd::testing
