#include "common/engine/scheduling/scheduler.h"

#include "tests/support/status_matchers.h"

namespace taopd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Requests with handles 1, 2, 3, ... in the order of the calls.
class SchedulerTest : public ::testing::Test {
 protected:
  void Make(const SchedulerLimits& limits) { scheduler_ = std::make_unique<Scheduler>(limits); }

  // `tag` fills the prompt: equal tags and lengths are equal prompts; by default each is its own.
  RequestHandle Add(bool score, bool generate, int64_t num_tokens, int32_t tag = -1,
                    absl::Time deadline = absl::InfiniteFuture()) {
    InferenceRequest request;
    const RequestHandle handle = next_++;
    request.token_ids.assign(num_tokens, tag >= 0 ? tag : static_cast<int32_t>(1000 + handle));
    if (score) request.score = ScoreParams();
    if (generate) request.sampling = SamplingParams();
    request.deadline = deadline;
    scheduler_->Add(
        std::make_unique<Sequence>(handle, std::move(request), nullptr, std::vector<int32_t>()));
    return handle;
  }
  RequestHandle AddScore(int64_t num_tokens) { return Add(true, false, num_tokens); }
  RequestHandle AddGeneration(int64_t num_tokens, int32_t tag = -1) {
    return Add(false, true, num_tokens, tag);
  }

  static std::vector<RequestHandle> Handles(const std::vector<Sequence*>& sequences) {
    std::vector<RequestHandle> handles;
    for (const Sequence* sequence : sequences) handles.push_back(sequence->handle);
    return handles;
  }
  void FinishAll(const std::vector<Sequence*>& sequences) {
    for (Sequence* sequence : sequences) scheduler_->Finish(sequence);
  }

  std::unique_ptr<Scheduler> scheduler_;
  RequestHandle next_ = 1;
};

SchedulerLimits Limits(int64_t max_num_seqs, int64_t num_slots, int64_t max_num_batched_tokens,
                       bool batch_scores = true) {
  return {max_num_seqs, num_slots, max_num_batched_tokens, batch_scores};
}

TEST_F(SchedulerTest, PrefillsThenDecodesInTheOrderOfArrival) {
  Make(Limits(8, 8, 100));
  AddGeneration(3);
  AddGeneration(4);
  EXPECT_EQ(scheduler_->num_waiting(), 2);
  EXPECT_EQ(scheduler_->queued_tokens(), 7);
  StepPlan plan = scheduler_->Schedule();
  EXPECT_THAT(Handles(plan.prefills), ElementsAre(1, 2));
  EXPECT_EQ(plan.prefills[0]->slot, 0);
  EXPECT_EQ(plan.prefills[1]->slot, 1);
  EXPECT_THAT(plan.decodes, IsEmpty());
  EXPECT_EQ(scheduler_->num_waiting(), 0);
  EXPECT_EQ(scheduler_->num_running(), 2);
  EXPECT_EQ(scheduler_->queued_tokens(), 0);

  AddGeneration(5);
  plan = scheduler_->Schedule();
  EXPECT_THAT(Handles(plan.prefills), ElementsAre(3));
  EXPECT_THAT(Handles(plan.decodes), ElementsAre(1, 2));
  scheduler_->Finish(plan.decodes[0]);
  plan = scheduler_->Schedule();
  EXPECT_THAT(Handles(plan.decodes), ElementsAre(2, 3));
}

TEST_F(SchedulerTest, AdmitsByMaxNumSeqsAndBySlots) {
  for (const SchedulerLimits& limits : {Limits(2, 9, 100), Limits(9, 2, 100)}) {
    Make(limits);
    next_ = 1;
    for (int i = 0; i < 3; ++i) AddGeneration(1);
    StepPlan plan = scheduler_->Schedule();
    EXPECT_THAT(Handles(plan.prefills), ElementsAre(1, 2));
    plan = scheduler_->Schedule();
    EXPECT_THAT(plan.prefills, IsEmpty());
    scheduler_->Finish(plan.decodes[0]);
    plan = scheduler_->Schedule();
    EXPECT_THAT(Handles(plan.prefills), ElementsAre(3));
    EXPECT_EQ(plan.prefills[0]->slot, 0);  // the lowest free one
    EXPECT_THAT(Handles(plan.decodes), ElementsAre(2));
  }
}

TEST_F(SchedulerTest, AdmitsByTokensAndAlwaysOne) {
  Make(Limits(8, 8, 10));
  AddGeneration(6);
  AddGeneration(4);
  AddGeneration(1);
  AddGeneration(50);
  AddGeneration(1);
  EXPECT_THAT(Handles(scheduler_->Schedule().prefills), ElementsAre(1, 2));  // 10 of 10
  // 2 decodes and 1; the 50 do not fit beside them, and nothing overtakes them.
  EXPECT_THAT(Handles(scheduler_->Schedule().prefills), ElementsAre(3));
  EXPECT_THAT(Handles(scheduler_->Schedule().prefills), ElementsAre(4));
  EXPECT_THAT(Handles(scheduler_->Schedule().prefills), ElementsAre(5));
}

TEST_F(SchedulerTest, ScoresPassGenerationsThatWaitForASlotAndOnlyThose) {
  Make(Limits(8, 1, 100));
  AddGeneration(1);
  AddGeneration(1);
  AddScore(5);
  AddScore(6);
  StepPlan plan = scheduler_->Schedule();
  EXPECT_THAT(Handles(plan.prefills), ElementsAre(1));
  EXPECT_THAT(Handles(plan.scores), ElementsAre(3, 4));
  EXPECT_EQ(plan.scores[0]->slot, -1);
  FinishAll(plan.scores);

  // With slots, the order of arrival holds: the score behind a prompt that is too long waits.
  Make(Limits(8, 8, 10));
  next_ = 1;
  AddGeneration(4);
  AddGeneration(9);
  AddScore(2);
  plan = scheduler_->Schedule();
  EXPECT_THAT(Handles(plan.prefills), ElementsAre(1));
  EXPECT_THAT(plan.scores, IsEmpty());
}

TEST_F(SchedulerTest, WithoutBatchedScoresAScoredSequenceIsAloneInItsStep) {
  Make(Limits(8, 8, 100, /*batch_scores=*/false));
  AddGeneration(1);
  AddGeneration(1);
  AddScore(2);
  AddScore(2);
  Add(/*score=*/true, /*generate=*/true, 2);
  AddGeneration(1);
  StepPlan plan = scheduler_->Schedule();
  EXPECT_THAT(Handles(plan.prefills), ElementsAre(1, 2));
  EXPECT_THAT(plan.scores, IsEmpty());
  for (RequestHandle expected : {3, 4}) {
    plan = scheduler_->Schedule();
    EXPECT_THAT(Handles(plan.scores), ElementsAre(expected));
    EXPECT_THAT(plan.prefills, IsEmpty());
    EXPECT_THAT(Handles(plan.decodes), ElementsAre(1, 2));
    FinishAll(plan.scores);
  }
  plan = scheduler_->Schedule();
  EXPECT_THAT(Handles(plan.prefills), ElementsAre(5));
  plan = scheduler_->Schedule();
  EXPECT_THAT(Handles(plan.prefills), ElementsAre(6));
  EXPECT_THAT(Handles(plan.decodes), ElementsAre(1, 2, 5));
}

TEST_F(SchedulerTest, EqualPromptsInARowArePrefilledOnce) {
  Make(Limits(8, 8, 10));
  for (int i = 0; i < 4; ++i) AddGeneration(8, /*tag=*/7);
  AddGeneration(2, /*tag=*/7);
  AddGeneration(2, /*tag=*/8);
  const StepPlan plan = scheduler_->Schedule();
  // 8 + 0 + 0 + 0 + 2 tokens.
  ASSERT_THAT(Handles(plan.prefills), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_FALSE(plan.prefills[0]->shares_prompt);
  EXPECT_TRUE(plan.prefills[1]->shares_prompt);
  EXPECT_TRUE(plan.prefills[3]->shares_prompt);
  EXPECT_FALSE(plan.prefills[4]->shares_prompt);

  Make(Limits(8, 8, 100));
  next_ = 1;
  AddGeneration(8, 7);
  Add(/*score=*/true, /*generate=*/true, 8, 7);
  AddGeneration(8, 7);
  for (const Sequence* sequence : scheduler_->Schedule().prefills)
    EXPECT_FALSE(sequence->shares_prompt);
}

TEST_F(SchedulerTest, CancelTakesWaitingAtOnceAndRunningBeforeTheNextStep) {
  Make(Limits(1, 1, 100));
  AddGeneration(3);
  AddGeneration(4);
  AddGeneration(5);
  StepPlan plan = scheduler_->Schedule();
  scheduler_->Cancel(2);
  scheduler_->Cancel(99);
  EXPECT_EQ(scheduler_->num_waiting(), 1);
  EXPECT_EQ(scheduler_->queued_tokens(), 5);
  auto dropped = scheduler_->TakeDropped();
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(dropped[0].first->handle, 2u);
  EXPECT_EQ(dropped[0].second.code(), absl::StatusCode::kCancelled);

  scheduler_->Cancel(1);
  EXPECT_EQ(scheduler_->num_running(), 1);
  plan = scheduler_->Schedule();
  EXPECT_THAT(plan.decodes, IsEmpty());
  EXPECT_THAT(Handles(plan.prefills), ElementsAre(3));  // the slot is free again
  dropped = scheduler_->TakeDropped();
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(dropped[0].first->handle, 1u);
}

TEST_F(SchedulerTest, ExpiredRequestsLeaveFromAnywhereInTheQueue) {
  Make(Limits(1, 1, 100));
  const absl::Time start = absl::UnixEpoch();
  AddGeneration(1);
  Add(false, true, 1, -1, start + absl::Seconds(5));
  Add(true, false, 4, -1, start + absl::Seconds(1));
  AddScore(1);
  scheduler_->DropExpired(start + absl::Milliseconds(999));
  EXPECT_EQ(scheduler_->num_waiting(), 4);
  scheduler_->DropExpired(start + absl::Seconds(1));
  EXPECT_EQ(scheduler_->num_waiting(), 3);
  EXPECT_EQ(scheduler_->queued_tokens(), 3);
  scheduler_->DropExpired(start + absl::Seconds(100));
  const auto dropped = scheduler_->TakeDropped();
  ASSERT_EQ(dropped.size(), 2u);
  EXPECT_EQ(dropped[0].first->handle, 3u);
  EXPECT_EQ(dropped[1].first->handle, 2u);
  EXPECT_EQ(dropped[0].second.code(), absl::StatusCode::kDeadlineExceeded);

  // A running request has left the deadline behind.
  Add(false, true, 1, -1, start + absl::Seconds(200));
  StepPlan plan = scheduler_->Schedule();
  FinishAll(plan.scores);
  FinishAll(plan.prefills);
  plan = scheduler_->Schedule();
  ASSERT_EQ(plan.prefills.size(), 1u);
  scheduler_->DropExpired(start + absl::Seconds(300));
  EXPECT_TRUE(scheduler_->TakeDropped().empty());
}

TEST_F(SchedulerTest, DropAllEmptiesEverything) {
  Make(Limits(2, 2, 100));
  for (int i = 0; i < 3; ++i) AddGeneration(2);
  scheduler_->Schedule();
  AddScore(3);
  scheduler_->DropAll(absl::UnavailableError("gone"));
  EXPECT_EQ(scheduler_->TakeDropped().size(), 4u);
  EXPECT_FALSE(scheduler_->has_work());
  EXPECT_EQ(scheduler_->num_running(), 0);
  EXPECT_EQ(scheduler_->queued_tokens(), 0);
  AddGeneration(2);
  AddGeneration(2);
  EXPECT_EQ(scheduler_->Schedule().prefills.size(), 2u);  // both slots came back
}

TEST(SlotPool, HandsOutTheLowest) {
  SlotPool pool(3);
  EXPECT_EQ(pool.Acquire(), 0);
  EXPECT_EQ(pool.Acquire(), 1);
  EXPECT_EQ(pool.Acquire(), 2);
  EXPECT_EQ(pool.num_free(), 0);
  pool.Release(2);
  pool.Release(0);
  EXPECT_EQ(pool.Acquire(), 0);
}

}  // namespace
}  // namespace taopd
