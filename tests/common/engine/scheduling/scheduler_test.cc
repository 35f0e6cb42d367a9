// Tests of the scheduler's rules on batches, budgets, preemption and endings, one by one.
#include "tests/common/engine/scheduling/scheduler_fixture.h"

namespace taopd::testing {
namespace {

class SchedulerTest : public SchedulerFixture {};

TEST_F(SchedulerTest, PrefillsThenDecodesUntilTheLastTokenIsSampled) {
  Make(Limits(8, 64, 100));
  AddGeneration(3, /*max_new_tokens=*/2);
  AddGeneration(4, /*max_new_tokens=*/3);
  EXPECT_EQ(scheduler_->num_waiting(), 2);
  EXPECT_EQ(scheduler_->queue().num_tokens, 7);
  EXPECT_EQ(Step(), "1[0,3)s 2[0,4)s");
  EXPECT_EQ(scheduler_->num_running(), 2);
  EXPECT_EQ(scheduler_->queue().num_tokens, 0);
  EXPECT_EQ(Step(), "1[3,4)s 2[4,5)s");
  EXPECT_EQ(Step(), "2[5,6)s");  // the third token is never fed
  EXPECT_FALSE(scheduler_->has_work());
  EXPECT_EQ(scheduler_->pool().num_in_use(), 0);
}

// A sequence sits a step out while the mask of its grammar is made: nothing is sampled.
TEST_F(SchedulerTest, ARowFromWhichNothingWasSampledIsComputedAgain) {
  Make(Limits(8, 64, 100));
  AddGeneration(3, /*max_new_tokens=*/2);
  for (const char* const rows : {"1[0,3)s", "1[2,3)s"}) {
    const StepPlan plan = scheduler_->Schedule();
    EXPECT_EQ(Text(plan), rows);
    scheduler_->Advance(plan);
  }
  ExpectSteps({"1[2,3)s", "1[3,4)s"});
}

TEST_F(SchedulerTest, ALongPromptTakesWhatDecodingLeavesOfTheBudget) {
  Make(Limits(8, 64, 10));
  AddGeneration(2, 9);
  AddGeneration(2, 9);
  EXPECT_EQ(Step(), "1[0,2)s 2[0,2)s");
  AddGeneration(20);
  AddGeneration(3);
  ExpectSteps({"1[2,3)s 2[2,3)s 3[0,8)", "1[3,4)s 2[3,4)s 3[8,16)",
               "1[4,5)s 2[4,5)s 3[16,20)s 4[0,3)s", "1[5,6)s 2[5,6)s 3[20,21)s 4[3,4)s"});
}

TEST_F(SchedulerTest, PromptsThatWereBegunGoBeforeNewOnes) {
  Make(Limits(8, 64, 4));
  AddGeneration(6);
  AddGeneration(2);
  ExpectSteps({"1[0,4)", "1[4,6)s 2[0,2)s"});
}

TEST_F(SchedulerTest, BlocksGrowWithTheRowsOfEachStep) {
  Make(Limits(8, 64, 6));
  const Sequence* sequence = AddGeneration(9);
  Step();
  EXPECT_THAT(sequence->blocks, ElementsAre(0, 1));
  EXPECT_EQ(sequence->num_computed, 6);
  Step();
  EXPECT_THAT(sequence->blocks, ElementsAre(0, 1, 2));
  EXPECT_EQ(sequence->num_computed, 9);
  EXPECT_EQ(sequence->num_tokens(), 10);
  EXPECT_EQ(sequence->token(9), 7);
}

TEST_F(SchedulerTest, MaxNumSeqsLimitsGenerationsAndLetsScoresPass) {
  Make(Limits(1, 64, 100));
  AddGeneration(2, 2);
  AddGeneration(2, 2);
  AddScore(5);
  ExpectSteps({"1[0,2)s 3[0,4)", "1[2,3)s", "2[0,2)s"});
}

TEST_F(SchedulerTest, NoMoreSequencesGenerateThanCanDecodeInOneStep) {
  Make(Limits(8, 64, 2));
  for (int i = 0; i < 3; ++i) AddGeneration(1, 3);
  ExpectSteps({"1[0,1)s 2[0,1)s", "1[1,2)s 2[1,2)s", "1[2,3)s 2[2,3)s", "3[0,1)s"});
}

TEST_F(SchedulerTest, AScoreNeedsNoRowOfTheLastToken) {
  Make(Limits(8, 64, 3));
  const Sequence* sequence = AddScore(6);
  EXPECT_EQ(sequence->next_scored_row, 0);
  EXPECT_EQ(Step(), "1[0,3)");
  EXPECT_EQ(sequence->next_scored_row, 3);
  EXPECT_EQ(Step(), "1[3,5)");
  EXPECT_FALSE(scheduler_->has_work());
}

TEST_F(SchedulerTest, OutOfBlocksTheLatestIsPreemptedAndGoesOnWhereItWas) {
  Make(Limits(8, 5, 100, /*prefix_caching=*/false));
  AddGeneration(7, 8);
  Sequence* const victim = AddGeneration(4, 8);
  EXPECT_EQ(Step(), "1[0,7)s 2[0,4)s");
  EXPECT_EQ(Step(), "1[7,8)s 2[4,5)s");  // 2 + 2 blocks
  EXPECT_EQ(Step(), "1[8,9)s 2[5,6)s");  // 3 + 2
  ExpectSteps({"1[9,10)s 2[6,7)s", "1[10,11)s 2[7,8)s"});
  EXPECT_EQ(victim->generated.ids.size(), 5u);
  AddScore(2);
  EXPECT_EQ(Step(), "1[11,12)s");  // the third block of request 2 is one too many
  EXPECT_EQ(scheduler_->stats().num_preempted, 1u);
  EXPECT_THAT(victim->blocks, IsEmpty());
  EXPECT_EQ(victim->num_computed, 0);
  EXPECT_EQ(scheduler_->num_waiting(), 2);
  EXPECT_EQ(Step(), "1[12,13)s");  // nobody overtakes request 2
  EXPECT_EQ(Step(), "1[13,14)s");
  // Its prompt and its five tokens are computed again; the sixth is sampled once.
  EXPECT_EQ(Step(), "2[0,9)s 3[0,1)");
  EXPECT_EQ(victim->generated.ids.size(), 6u);
  EXPECT_EQ(Step(), "2[9,10)s");
}

TEST_F(SchedulerTest, ManyPreemptionsGoFromTheLatestOnAndEndInTheOldOrder) {
  Make(Limits(8, 6, 100, /*prefix_caching=*/false));
  for (int i = 0; i < 3; ++i) AddGeneration(3, 14);  // four blocks each at the end
  EXPECT_EQ(Step(), "1[0,3)s 2[0,3)s 3[0,3)s");
  for (int i = 0; i < 5; ++i) Step();
  EXPECT_EQ(Step(), "1[8,9)s 2[8,9)s");  // 3 + 3 blocks
  EXPECT_EQ(scheduler_->stats().num_preempted, 1u);
  for (int i = 0; i < 3; ++i) Step();
  EXPECT_EQ(Step(), "1[12,13)s");  // 4 blocks
  EXPECT_EQ(scheduler_->stats().num_preempted, 2u);
  for (int i = 0; i < 2; ++i) Step();
  EXPECT_EQ(Step(), "1[15,16)s");
  EXPECT_EQ(Step(), "2[0,13)s");  // 2 comes before 3, which would leave no spare block
  EXPECT_EQ(scheduler_->num_running(), 1);
}

TEST_F(SchedulerTest, TheRowsOfAPreemptedSequenceLeaveThePlan) {
  Make(Limits(8, 10, 3, /*prefix_caching=*/false));
  Sequence* const leader = Add(Generation(Prompt(26, 1)));
  Add(Generation(Prompt(26, 1)));
  AddGeneration(1, 20);
  for (int i = 0; i < 8; ++i) Step();
  const StepPlan plan = scheduler_->Schedule();
  EXPECT_EQ(Text(plan), "1[24,26)s+2 3[0,1)s");
  leader->status = absl::InternalError("failed");
  Complete(plan);
  // Request 2 starts again, along with the younger request 3.
  EXPECT_EQ(Step(), "3[1,2)s 2[0,2)");
  for (int i = 0; i < 10; ++i) Step();
  EXPECT_EQ(Step(), "3[12,13)s 2[22,24)");  // 4 + 6 blocks
  // Request 3 is planned and then loses its blocks to request 2.
  EXPECT_EQ(Step(), "2[24,26)s");
  EXPECT_EQ(scheduler_->stats().num_preempted, 2u);
}

TEST_F(SchedulerTest, AdmitsOnlyWhatFitsWithASpareBlock) {
  Make(Limits(8, 6, 4));
  AddGeneration(12, 4);  // three blocks, of which the first step takes one
  AddGeneration(9, 4);   // three blocks: none would be spare
  AddGeneration(1, 1);   // fits, but does not overtake
  ExpectSteps({"1[0,4)", "1[4,8)", "1[8,12)s", "1[12,13)s", "1[13,14)s", "1[14,15)s", "2[0,4)",
               "2[4,8)", "2[8,9)s 3[0,1)s"});
  EXPECT_EQ(scheduler_->stats().num_preempted, 0u);
}

TEST_F(SchedulerTest, ScoresThatDoNotFitThePoolRunWithoutItEveryOtherStep) {
  Make(Limits(8, 2, 10));
  AddGeneration(2, 6);
  AddScore(6);   // two blocks
  AddScore(11);  // ten rows: three blocks
  AddScore(30);  // longer than the budget
  AddScore(10);  // nine rows: three blocks
  ExpectSteps({"uncached 3[0,10)", "1[0,2)s", "uncached 4[0,29)", "1[2,3)s", "uncached 5[0,9)",
               "1[3,4)s", "1[4,5)s"});
}

TEST_F(SchedulerTest, WithoutBlocksWholeScoresShareTheBudget) {
  Make(Limits(8, 0, 10));
  AddScore(6);
  AddScore(6);
  AddScore(2);
  AddScore(40);
  AddScore(3);
  const StepPlan plan = scheduler_->Schedule();
  EXPECT_EQ(Text(plan), "uncached 1[0,5) 2[0,5)");
  EXPECT_THAT(plan.rows[0].sequence->blocks, IsEmpty());
  Complete(plan);
  EXPECT_EQ(Step(), "uncached 3[0,1)");  // nobody overtakes the long one
  ExpectSteps({"uncached 4[0,39)", "uncached 5[0,2)"});
  EXPECT_FALSE(scheduler_->has_work());
}

TEST_F(SchedulerTest, ClientsTakeTurnsByTokens) {
  Make(Limits(8, 64, 6));
  const auto add = [&](const std::string& client, int64_t length) {
    InferenceRequest request = Score(Prompt(length + 1, static_cast<int32_t>(1000 * next_)));
    request.client = client;
    Add(std::move(request));
  };
  for (int i = 0; i < 3; ++i) add("a", 6);
  add("b", 2);
  add("b", 2);
  add("b", 2);
  ExpectSteps({"1[0,6)", "4[0,2) 5[0,2) 6[0,2)", "2[0,6)"});
}

TEST_F(SchedulerTest, CancelTakesWaitingAtOnceAndRunningBeforeTheNextStep) {
  Make(Limits(1, 64, 100));
  AddGeneration(3);
  AddGeneration(4);
  AddGeneration(5);
  Step();
  scheduler_->Cancel(2);
  scheduler_->Cancel(99);
  EXPECT_EQ(scheduler_->num_waiting(), 1);
  EXPECT_EQ(scheduler_->queue().num_tokens, 5);
  EXPECT_THAT(Dropped(), ElementsAre(Pair(2, kCancelled)));
  scheduler_->Cancel(1);
  EXPECT_EQ(scheduler_->num_running(), 1);
  EXPECT_EQ(Step(), "3[0,5)s");
  EXPECT_THAT(Dropped(), ElementsAre(Pair(1, kCancelled)));
}

TEST_F(SchedulerTest, DeadlinesEndWaitingAndRunningWork) {
  Make(Limits(1, 64, 100));
  const absl::Time start = absl::UnixEpoch();
  const auto add = [&](int64_t seconds) {
    InferenceRequest request = Generation({1, 2, 3});
    request.deadline = start + absl::Seconds(seconds);
    Add(std::move(request));
  };
  AddGeneration(2, 9);
  add(5);
  add(1);
  add(9);
  Step();
  scheduler_->DropExpired(start + absl::Milliseconds(999));
  EXPECT_EQ(scheduler_->num_waiting(), 3);
  scheduler_->DropExpired(start + absl::Seconds(5));
  EXPECT_THAT(Dropped(), ElementsAre(Pair(3, kDeadlineExceeded), Pair(2, kDeadlineExceeded)));
  EXPECT_EQ(scheduler_->queue().num_tokens, 3);
  scheduler_->Cancel(1);
  EXPECT_EQ(Step(), "4[0,3)s");
  Dropped();
  scheduler_->DropExpired(start + absl::Seconds(9));
  EXPECT_EQ(scheduler_->num_running(), 1);
  EXPECT_EQ(Step(), "");
  EXPECT_THAT(Dropped(), ElementsAre(Pair(4, kDeadlineExceeded)));
  EXPECT_EQ(scheduler_->pool().num_in_use(), 0);
  EXPECT_FALSE(scheduler_->has_work());
}

TEST_F(SchedulerTest, DropAllEmptiesEverything) {
  Make(Limits(2, 8, 100));
  for (int i = 0; i < 3; ++i) AddGeneration(8, 4);
  AddScore(100);
  scheduler_->Schedule();
  AddScore(3);
  scheduler_->DropAll(absl::UnavailableError("gone"));
  EXPECT_EQ(Dropped().size(), 5u);
  EXPECT_FALSE(scheduler_->has_work());
  EXPECT_EQ(scheduler_->num_running(), 0);
  EXPECT_EQ(scheduler_->queue().num_tokens, 0);
  EXPECT_EQ(scheduler_->pool().num_in_use(), 0);
  AddGeneration(2);
  EXPECT_EQ(Step(), "6[0,2)s");
}

}  // namespace
}  // namespace taopd::testing
