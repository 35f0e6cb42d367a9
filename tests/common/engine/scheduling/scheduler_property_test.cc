// Runs random work and checks the rules that hold in every step (scheduled_engine.h).
#include <map>

#include "common/base/random.h"
#include "tests/common/engine/scheduling/scheduled_engine.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

struct Totals {
  int64_t num_steps = 0;
  std::map<absl::StatusCode, int64_t> num_results;
  int64_t longest_wait = 0;
  int64_t num_copies = 0;
  int64_t num_forks = 0;
  int64_t num_uncached_steps = 0;
  int64_t num_checked_results = 0;
  uint64_t num_preempted = 0;
  uint64_t num_hit_tokens = 0;
  uint64_t num_evictions = 0;
};

constexpr absl::Time kStart = absl::UnixEpoch();

SchedulerLimits RandomLimits(RandomStream* random) {
  SchedulerLimits limits;
  limits.block_tokens = 1 + static_cast<int64_t>(random->NextBelow(4));
  limits.num_blocks = random->NextBelow(10) == 0 ? 0 : 8 + random->NextBelow(24);
  limits.max_num_seqs = 1 + random->NextBelow(8);
  limits.max_num_batched_tokens = 1 + random->NextBelow(24);
  limits.prefix_caching = random->NextBelow(4) > 0;
  return limits;
}

// Prompts use two token ids, so that prefixes coincide, and often repeat an earlier prompt.
InferenceRequest RandomRequest(const SchedulerLimits& limits, int64_t now,
                               std::vector<std::vector<int32_t>>* prompts, RandomStream* random) {
  const int64_t pool_tokens = limits.num_blocks * limits.block_tokens;
  InferenceRequest request;
  const uint64_t kind = pool_tokens == 0 ? 0 : random->NextBelow(6);
  if (kind <= 1) {
    int64_t num_tokens = 2 + random->NextBelow(12);
    if (random->NextBelow(8) == 0) num_tokens += pool_tokens + random->NextBelow(30);
    for (int64_t i = 0; i < num_tokens; ++i) request.token_ids.push_back(random->NextBelow(2));
  } else if (!prompts->empty() && random->NextBelow(2) == 0) {
    request.token_ids = (*prompts)[random->NextBelow(prompts->size())];
  } else {
    const int64_t longest = std::max<int64_t>(2, pool_tokens / (1 + random->NextBelow(6)));
    const int64_t num_tokens =
        std::min(pool_tokens - 1, 1 + static_cast<int64_t>(random->NextBelow(longest)));
    for (int64_t i = 0; i < num_tokens; ++i)
      request.token_ids.push_back(random->NextBelow(16) == 0);
    if (prompts->size() >= 4) prompts->erase(prompts->begin());
    prompts->push_back(request.token_ids);
  }
  const int64_t num_tokens = static_cast<int64_t>(request.token_ids.size());
  if ((kind <= 1 || kind == 5) && num_tokens >= 2) {
    request.score = ScoreParams();
    request.score->start = 1 + random->NextBelow(num_tokens - 1);
  }
  if (!request.score || kind == 5) {
    request.sampling = SamplingParams();
    request.sampling->max_new_tokens =
        1 + random->NextBelow(std::min<int64_t>(pool_tokens - num_tokens + 1, 24));
    request.sampling->seed = random->NextU64();
  }
  if (random->NextBelow(10) == 0)
    request.deadline = kStart + absl::Seconds(now + random->NextBelow(60));
  request.client = std::string(1, static_cast<char>('a' + random->NextBelow(3)));
  if (random->NextBelow(8) == 0) request.cache_salt = "salt";
  return request;
}

// Returns the digest of all plans.
uint64_t RunOnce(uint64_t seed, int64_t num_steps, Totals* totals) {
  RandomStream random(seed);
  const SchedulerLimits limits = RandomLimits(&random);
  ScheduledEngine engine(limits);
  std::vector<std::vector<int32_t>> prompts;
  uint64_t version = 0;
  for (int64_t step = 0; engine.num_live() > 0 || step < num_steps; ++step) {
    const bool drain = step >= num_steps;
    while (!drain && engine.num_live() < 20 && random.NextBelow(3) > 0) {
      const InferenceRequest request = RandomRequest(limits, step, &prompts, &random);
      const uint64_t num_rollouts = random.NextBelow(3) == 0 ? 1 + random.NextBelow(5) : 1;
      for (uint64_t rollout = 0; rollout < num_rollouts; ++rollout) {
        engine.Add(request);
        if (random.NextBelow(4) == 0) engine.Add(RandomRequest(limits, step, &prompts, &random));
      }
    }
    if (!drain && random.NextBelow(20) == 0 && engine.num_live() > 0) {
      auto victim = engine.born().begin();
      std::advance(victim, random.NextBelow(engine.born().size()));
      engine.scheduler().Cancel(victim->first);
    }
    if (!drain && random.NextBelow(200) == 0) engine.SetWeightVersion(++version % 5);
    if (!drain && random.NextBelow(200) == 0) engine.ReleaseCache();
    engine.scheduler().DropExpired(kStart + absl::Seconds(step));
    const uint64_t luck = random.NextBelow(60);
    engine.Step(drain       ? ScheduledEngine::Failure::kNone
                : luck == 0 ? ScheduledEngine::Failure::kOneSequence
                : luck == 1 ? ScheduledEngine::Failure::kWholeStep
                            : ScheduledEngine::Failure::kNone);
    if (::testing::Test::HasFatalFailure()) {
      ADD_FAILURE() << "seed " << seed << ", step " << step;
      return 0;
    }
    if (step > num_steps + 5000) {
      ADD_FAILURE() << "seed " << seed << ": work does not end";
      return 0;
    }
  }
  const Scheduler& scheduler = engine.scheduler();
  EXPECT_FALSE(scheduler.has_work());
  EXPECT_EQ(scheduler.queue().num_tokens, 0);
  EXPECT_EQ(scheduler.pool().num_in_use(), 0);
  for (const auto& [handle, result] : engine.results()) {
    ++totals->num_results[result.status.code()];
    totals->longest_wait = std::max(totals->longest_wait, result.num_steps);
  }
  totals->num_steps += engine.num_steps();
  totals->num_copies += engine.num_copies();
  totals->num_forks += engine.num_forks();
  totals->num_uncached_steps += engine.num_uncached_steps();
  totals->num_checked_results += engine.num_checked_results();
  totals->num_preempted += scheduler.stats().num_preempted;
  totals->num_hit_tokens += scheduler.stats().prefix_hit_tokens;
  totals->num_evictions += scheduler.pool().num_evictions();
  return engine.digest();
}

TEST(SchedulerProperty, RulesHoldInAHundredThousandRandomSteps) {
  Totals totals;
  for (uint64_t seed = 0; totals.num_steps < 100000 && !HasFailure(); ++seed)
    RunOnce(seed, 250, &totals);
  // Each path is taken often.
  EXPECT_GT(totals.num_results[kOk], 10000);
  for (const auto code : {kInternal, kCancelled, kDeadlineExceeded}) {
    EXPECT_GT(totals.num_results[code], 1000) << code;
  }
  EXPECT_GT(totals.num_copies, 500);
  EXPECT_GT(totals.num_forks, 1000);
  EXPECT_GT(totals.num_uncached_steps, 1000);
  EXPECT_GT(totals.num_checked_results, 1000);
  EXPECT_GT(totals.num_preempted, 1000u);
  EXPECT_GT(totals.num_hit_tokens, 10000u);
  EXPECT_GT(totals.num_evictions, 1000u);
  // There are 24 requests of at most 24 new tokens and a prompt that may be fed token by token.
  EXPECT_LT(totals.longest_wait, 3000);
}

TEST(SchedulerProperty, TheSameCallsGiveTheSamePlans) {
  for (uint64_t seed = 1000; seed < 1010 && !HasFailure(); ++seed) {
    Totals totals;
    const uint64_t first = RunOnce(seed, 200, &totals);
    EXPECT_EQ(RunOnce(seed, 200, &totals), first);
    EXPECT_NE(first, 0u);
  }
}

}  // namespace
}  // namespace taopd::testing
