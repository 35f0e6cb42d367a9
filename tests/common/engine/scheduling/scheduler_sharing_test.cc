// The scheduler's rules on shared blocks: followers, copy on write and the prefix cache.
#include "tests/common/engine/scheduling/scheduler_fixture.h"

namespace taopd::testing {
namespace {

std::vector<std::pair<int32_t, int32_t>> Copies(const StepPlan& plan) {
  std::vector<std::pair<int32_t, int32_t>> copies;
  for (const BlockCopy& copy : plan.copies) copies.emplace_back(copy.from, copy.to);
  return copies;
}

class SchedulerSharingTest : public SchedulerFixture {};

TEST_F(SchedulerSharingTest, RolloutsOfOnePromptFollowTheFirst) {
  Make(Limits(8, 64, 100, /*prefix_caching=*/false));
  const Sequence* leader = Add(Generation(Prompt(6, 1)));
  AddGeneration(2);
  const Sequence* follower = Add(Generation(Prompt(6, 1)));
  Add(Generation(Prompt(6, 1)));
  EXPECT_EQ(Step(), "1[0,6)s+3,4 2[0,2)s");
  EXPECT_EQ(leader->blocks, follower->blocks);
  EXPECT_EQ(follower->num_computed, 6);
  EXPECT_EQ(follower->num_tokens(), 7);
  EXPECT_EQ(scheduler_->pool().num_references(leader->blocks[0]), 3);

  // Each sequence that writes to the shared last block gets a copy, and the last one keeps the
  // original.
  const StepPlan plan = scheduler_->Schedule();
  EXPECT_EQ(Text(plan), "1[6,7)s 3[6,7)s 4[6,7)s 2[2,3)s");
  EXPECT_THAT(Copies(plan), ElementsAre(std::pair(1, 3), std::pair(1, 4)));
  EXPECT_THAT(leader->blocks, ElementsAre(0, 3));
  EXPECT_THAT(follower->blocks, ElementsAre(0, 4));
  EXPECT_EQ(scheduler_->pool().num_references(1), 1);
  EXPECT_EQ(scheduler_->pool().num_references(0), 3);
  Complete(plan);
  EXPECT_THAT(Copies(scheduler_->Schedule()), IsEmpty());
}

TEST_F(SchedulerSharingTest, AFullLastBlockIsNotCopied) {
  Make(Limits(8, 64, 100));
  const Sequence* leader = Add(Generation(Prompt(8, 1)));
  const Sequence* follower = Add(Generation(Prompt(8, 1)));
  EXPECT_EQ(Step(), "1[0,8)s+2");
  const StepPlan plan = scheduler_->Schedule();
  EXPECT_THAT(Copies(plan), IsEmpty());
  EXPECT_THAT(leader->blocks, ElementsAre(0, 1, 2));
  EXPECT_THAT(follower->blocks, ElementsAre(0, 1, 3));
}

TEST_F(SchedulerSharingTest, FollowersWaitForTheLastChunkAndMayJoinUntilThen) {
  Make(Limits(8, 64, 4, /*prefix_caching=*/false));
  Add(Generation(Prompt(6, 1)));
  EXPECT_EQ(Step(), "1[0,4)");
  Add(Generation(Prompt(6, 1)));
  EXPECT_EQ(Step(), "1[4,6)s+2");
  Add(Generation(Prompt(6, 1)));  // too late
  EXPECT_EQ(Step(), "1[6,7)s 2[6,7)s 3[0,2)");
}

TEST_F(SchedulerSharingTest, OnlyEqualPromptsOfOneClientAndSaltThatOnlyGenerateAreShared) {
  Make(Limits(8, 64, 100, /*prefix_caching=*/false));
  Add(Generation({1, 2, 3}));
  Add(Generation({1, 2, 4}));
  InferenceRequest request = Generation({1, 2, 3});
  request.client = "other";
  Add(request);
  request.client = "";
  request.cache_salt = "salt";
  Add(request);
  request.cache_salt = "";
  request.score = ScoreParams();
  Add(request);
  EXPECT_EQ(Step(), "1[0,3)s 3[0,3)s 2[0,3)s 4[0,3)s 5[0,3)s");
}

TEST_F(SchedulerSharingTest, MaxNumSeqsCountsFollowers) {
  Make(Limits(3, 64, 100, /*prefix_caching=*/false));
  for (int i = 0; i < 4; ++i) Add(Generation(Prompt(5, 1), 2));
  ExpectSteps({"1[0,5)s+2,3", "1[5,6)s 2[5,6)s 3[5,6)s", "4[0,5)s"});
}

TEST_F(SchedulerSharingTest, AFollowerTakesOverFromACancelledLeader) {
  Make(Limits(8, 64, 4, /*prefix_caching=*/false));
  for (int i = 0; i < 3; ++i) Add(Generation(Prompt(7, 1)));
  EXPECT_EQ(Step(), "1[0,4)");
  scheduler_->Cancel(1);
  EXPECT_EQ(Step(), "2[4,7)s+3");
  EXPECT_EQ(scheduler_->pool().num_in_use(), 2);
  scheduler_->Cancel(2);
  EXPECT_EQ(Step(), "3[7,8)s");
}

class NeverReady final : public LogitMask {
  absl::StatusOr<bool> Mask(std::span<const int32_t>, std::span<uint64_t>) override { return true; }
  bool IsReady(std::span<const int32_t>, absl::Duration) override { return false; }
};

TEST_F(SchedulerSharingTest, NobodyWaitsForTheBlockOfASequenceThatWaitsForItsMask) {
  Make(Limits(8, 64, 100));
  InferenceRequest request = Generation(Prompt(7, 1));
  request.sampling->mask = std::make_shared<NeverReady>();
  Sequence* const masked = Add(request);
  EXPECT_EQ(Step(), "1[0,7)s");
  masked->num_mask_waits = 1;
  Add(Generation({1, 2, 3, 4, 5, 6, 7, 7, 9}));
  EXPECT_EQ(Step(), "2[4,9)s");
}

TEST_F(SchedulerSharingTest, ManyThatWaitForABlockDoNotStopOtherClients) {
  Make(Limits(1000, 2000, 100));
  Add(Generation(Prompt(1000, 1)));
  EXPECT_EQ(Step(), "1[0,100)");
  InferenceRequest other = Generation({5, 6});
  other.client = "other";  // its turn is after the first client's
  Add(other);
  EXPECT_EQ(Step(), "1[100,198) 2[0,2)s");
  for (int32_t i = 0; i < 600; ++i) {
    InferenceRequest request = Generation(Prompt(1000, 1));
    request.token_ids.push_back(i);
    Add(request);
  }
  other.token_ids = {5};
  Add(other);
  EXPECT_EQ(Step(), "2[2,3)s 1[198,296) 603[0,1)s");
}

TEST_F(SchedulerSharingTest, FollowersOfAFailedLeaderStartAgain) {
  Make(Limits(8, 64, 100));
  Sequence* const leader = Add(Generation(Prompt(7, 1)));
  for (int i = 0; i < 3; ++i) Add(Generation(Prompt(7, 1)));
  const StepPlan plan = scheduler_->Schedule();
  leader->status = absl::InternalError("failed");
  scheduler_->Cancel(4);
  Complete(plan);
  EXPECT_EQ(scheduler_->pool().num_in_use(), 0);
  EXPECT_EQ(scheduler_->pool().num_cached(), 0);  // failed prefixes cannot be found
  EXPECT_EQ(Step(), "2[0,7)s+3");
}

TEST_F(SchedulerSharingTest, ABlockThatIsCopiedIsNotHandedOutInTheSameStep) {
  Make(Limits(8, 7, 9, /*prefix_caching=*/false));
  Sequence* const leader = Add(Generation(Prompt(10, 1)));
  AddGeneration(4);
  AddGeneration(4);
  EXPECT_EQ(Step(), "1[0,9)");
  Add(Generation(Prompt(10, 1)));
  EXPECT_EQ(Step(), "1[9,10)s+4 2[0,4)s 3[0,4)s");
  EXPECT_THAT(leader->blocks, ElementsAre(0, 1, 2));
  // Request 1 takes a copy of block 2, and request 2 the last free block. Request 4 is preempted
  // for request 3, but frees no block that 3 can use now.
  const StepPlan plan = scheduler_->Schedule();
  EXPECT_EQ(Text(plan), "1[10,11)s 2[4,5)s");
  EXPECT_THAT(Copies(plan), ElementsAre(std::pair(2, 5)));
  EXPECT_EQ(scheduler_->stats().num_preempted, 2u);
  EXPECT_EQ(scheduler_->pool().num_references(2), 0);
}

TEST_F(SchedulerSharingTest, CachedBlocksAreUsedUpToTheLastTokenOfAGeneration) {
  Make(Limits(8, 64, 100));
  Add(Generation(Prompt(12, 1), 1));
  EXPECT_EQ(Step(), "1[0,12)s");
  EXPECT_EQ(scheduler_->pool().num_cached(), 3);
  Add(Generation(Prompt(12, 1), 1));  // token 11 is fed, and with it its block
  EXPECT_EQ(Step(), "2[8,12)s");
  Add(Generation(Prompt(13, 1), 1));
  EXPECT_EQ(Step(), "3[12,13)s");
  EXPECT_EQ(scheduler_->stats().prefix_hit_tokens, 8u + 12u);
  EXPECT_EQ(scheduler_->stats().prefix_query_tokens, 12u + 12u + 13u);
}

TEST_F(SchedulerSharingTest, CachedBlocksAreUsedUpToTheFirstScoredRow) {
  Make(Limits(8, 64, 100));
  Add(Generation(Prompt(12, 1), 1));
  Step();
  // Row start - 1 is computed: blocks may hold rows up to start - 2.
  const std::vector<std::pair<int64_t, std::string>> expected = {
      {1, "[0,11)"}, {4, "[0,11)"}, {5, "[4,11)"}, {8, "[4,11)"}, {9, "[8,11)"}, {11, "[8,11)"}};
  for (const auto& [start, rows] : expected) {
    Add(Score(Prompt(12, 1), start));
    EXPECT_EQ(Step(), std::to_string(next_ - 1) + rows) << start;
  }
  InferenceRequest both = Score(Prompt(12, 1), 5);
  both.sampling = SamplingParams();
  Add(both);
  EXPECT_EQ(Step(), std::to_string(next_ - 1) + "[4,12)s");
}

TEST_F(SchedulerSharingTest, GeneratedTokensCanBeFoundAsWell) {
  Make(Limits(8, 64, 100));
  Add(Generation(Prompt(6, 1), 4));
  for (int i = 0; i < 4; ++i) Step();  // rows 0 to 8
  std::vector<int32_t> prompt = Prompt(6, 1);
  for (int32_t token : {7, 7, 50}) prompt.push_back(token);
  Add(Generation(prompt, 1));
  EXPECT_EQ(Step(), "2[8,9)s");
}

TEST_F(SchedulerSharingTest, WeightsSaltAndReleaseCacheSeparatePrefixes) {
  Make(Limits(8, 64, 100));
  const auto rows = [&](const std::string& salt) {
    InferenceRequest request = Generation(Prompt(9, 1), 1);
    request.cache_salt = salt;
    Add(request);
    const std::string text = Step();
    return text.substr(text.find('['));
  };
  EXPECT_EQ(rows(""), "[0,9)s");
  EXPECT_EQ(rows(""), "[8,9)s");
  EXPECT_EQ(rows("salt"), "[0,9)s");
  EXPECT_EQ(rows("salt"), "[8,9)s");
  scheduler_->SetWeightVersion(1);
  EXPECT_EQ(rows(""), "[0,9)s");
  EXPECT_EQ(rows(""), "[8,9)s");
  scheduler_->ReleaseCache();
  EXPECT_EQ(scheduler_->pool().num_cached(), 0);
  EXPECT_EQ(rows(""), "[0,9)s");
}

TEST_F(SchedulerSharingTest, WhatBeganWithOldWeightsIsNotShared) {
  Make(Limits(8, 64, 8));
  Add(Generation(Prompt(12, 1), 3));
  EXPECT_EQ(Step(), "1[0,8)");
  scheduler_->SetWeightVersion(1);
  Add(Generation(Prompt(12, 1), 3));
  EXPECT_EQ(Step(), "1[8,12)s 2[0,4)");  // neither follows nor waits
  ExpectSteps({"1[12,13)s 2[4,11)", "1[13,14)s 2[11,12)s"});
  scheduler_->SetWeightVersion(0);
  Add(Generation(Prompt(13, 1), 1));
  EXPECT_EQ(Step(), "2[12,13)s 3[8,13)s");  // two blocks were complete with version 0
}

TEST_F(SchedulerSharingTest, ASequenceWaitsForABlockThatIsBeingComputed) {
  Make(Limits(8, 64, 100));
  Add(Score(Prompt(14, 1), 13));
  std::vector<int32_t> fork = Prompt(9, 1);
  fork.resize(14, 99);
  Add(Score(fork, 13));
  AddScore(3);  // does not have to wait
  ExpectSteps({"1[0,13) 3[0,2)", "2[8,13)"});

  Make(Limits(8, 64, 100, /*prefix_caching=*/false));
  Add(Score(Prompt(14, 1), 13));
  Add(Score(fork, 13));
  EXPECT_EQ(Step(), "1[0,13) 2[0,13)");
}

TEST_F(SchedulerSharingTest, WaitingForOthersHasAnEnd) {
  Make(Limits(8, 64, 100));
  // Each of the first requests fails while the others wait for it.
  for (int i = 0; i < 7; ++i) Add(Score(Prompt(9, 1), 8));
  for (RequestHandle expected = 1; expected <= PrefixSharing::kMaxWaits; ++expected) {
    const StepPlan plan = scheduler_->Schedule();
    EXPECT_EQ(Text(plan), std::to_string(expected) + "[0,8)");
    plan.rows[0].sequence->status = absl::InternalError("failed");
    Complete(plan);
  }
  EXPECT_EQ(Step(), "5[0,8) 6[0,8) 7[0,8)");
}

TEST_F(SchedulerSharingTest, APreemptedSequenceFindsItsOwnBlocksAgain) {
  Make(Limits(8, 6, 100));
  AddGeneration(8, 9);
  Sequence* const victim = AddGeneration(8, 6);
  EXPECT_EQ(Step(), "1[0,8)s 2[0,8)s");
  for (int i = 0; i < 4; ++i) Step();  // 3 + 3 blocks
  EXPECT_EQ(victim->num_computed, 12);
  EXPECT_EQ(Step(), "1[12,13)s");
  EXPECT_EQ(scheduler_->stats().num_preempted, 1u);
  EXPECT_EQ(scheduler_->queue().num_requests, 0);     // only new ones count
  EXPECT_EQ(scheduler_->pool().num_evictions(), 1u);  // the last one of request 2
  for (int i = 0; i < 3; ++i) Step();
  EXPECT_EQ(Step(), "2[8,13)s");
}

}  // namespace
}  // namespace taopd::testing
