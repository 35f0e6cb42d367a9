#include "trainer/control/liveness.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "trainer/control/run_state.h"

namespace taopd::testing {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(10);

class LivenessTest : public ::testing::Test {
 protected:
  ManualClock clock_;
  Liveness::Activity activity_ = {{1, 2}};
  Liveness liveness_{kTimeout, [this] { return activity_; }, &clock_};
};

TEST_F(LivenessTest, NoChangeForLongerThanTheLimitIsAStall) {
  EXPECT_OK(liveness_.Check());
  clock_.Advance(kTimeout);
  EXPECT_OK(liveness_.Check());
  clock_.Advance(absl::Seconds(1));
  EXPECT_ERROR(liveness_.Check(), kUnavailable,
               "no progress for 11 s, more than trainer.stall_timeout_s 10");
}

TEST_F(LivenessTest, AnyChangeIsProgress) {
  for (int i = 0; i < 4; ++i) {
    EXPECT_OK(liveness_.Check());
    clock_.Advance(absl::Seconds(9));
    ++(*activity_)[i % 2];
  }
  EXPECT_OK(liveness_.Check());
  clock_.Advance(absl::Seconds(11));
  EXPECT_ERROR(liveness_.Check(), kUnavailable, "no progress");
  --(*activity_)[0];  // a number may fall, too
  EXPECT_OK(liveness_.Check());
}

TEST_F(LivenessTest, AChangeBetweenRareChecksCounts) {
  EXPECT_OK(liveness_.Check());
  clock_.Advance(absl::Hours(1));
  ++(*activity_)[0];
  EXPECT_OK(liveness_.Check());
}

TEST_F(LivenessTest, AWaitForAPersonIsNoStall) {
  const auto running = activity_;
  EXPECT_OK(liveness_.Check());
  activity_ = std::nullopt;
  for (int i = 0; i < 3; ++i) {
    clock_.Advance(absl::Hours(1));
    EXPECT_OK(liveness_.Check());
  }
  activity_ = running;
  clock_.Advance(absl::Hours(1));
  EXPECT_OK(liveness_.Check());  // the time counts from here
  clock_.Advance(absl::Seconds(11));
  EXPECT_ERROR(liveness_.Check(), kUnavailable, "no progress");
}

TEST_F(LivenessTest, ZeroIsNoLimit) {
  Liveness without(
      absl::ZeroDuration(), [this] { return activity_; }, &clock_);
  EXPECT_OK(without.Check());
  clock_.Advance(absl::Hours(100));
  EXPECT_OK(without.Check());
}

TEST(RunStateProgressTest, OnlyAHeldPauseIsAWait) {
  RunState state;
  state.RequestPause(true);
  EXPECT_FALSE(state.is_paused());  // the step in progress may hang
  state.Update([](RunStatus& status) { status.phase = TrainerPhase::kPaused; });
  EXPECT_TRUE(state.is_paused());
  state.RequestPause(false);
  EXPECT_FALSE(state.is_paused());
  state.RequestPause(true);
  state.RequestStop(kExitStopped);
  EXPECT_FALSE(state.is_paused());
  const int64_t before = state.num_progress();
  state.WaitWhilePaused([] {});
  EXPECT_GT(state.num_progress(), before);
}

}  // namespace
}  // namespace taopd::testing
