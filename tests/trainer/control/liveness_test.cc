#include "trainer/control/liveness.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "trainer/control/run_control.h"

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

TEST(RunControlProgressTest, OnlyAHeldPauseIsAWait) {
  RunControl control;
  control.RequestPause(true);
  EXPECT_FALSE(control.is_paused());  // the step in progress may hang
  control.Update([](RunStatus& status) { status.phase = TrainerPhase::kPaused; });
  EXPECT_TRUE(control.is_paused());
  control.RequestPause(false);
  EXPECT_FALSE(control.is_paused());
  control.RequestPause(true);
  control.RequestStop(kExitStopped);
  EXPECT_FALSE(control.is_paused());
  const int64_t before = control.num_progress();
  control.WaitWhilePaused([] {});
  EXPECT_GT(control.num_progress(), before);
}

}  // namespace
}  // namespace taopd::testing
