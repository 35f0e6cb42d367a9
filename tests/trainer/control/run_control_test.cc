// The loop and the servers talk to each other, with threads in both roles.
#include <absl/synchronization/notification.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/support/status_matchers.h"
#include "trainer/control/run_control.h"

namespace taopd::testing {
namespace {

class RunControlTest : public ::testing::Test {
 protected:
  RunControl control_;
};

TEST_F(RunControlTest, StatusIsWhatTheLoopPublished) {
  EXPECT_EQ(control_.status().phase, TrainerPhase::kStarting);
  control_.Update([](RunStatus& status) {
    status.run_name = "run";
    status.step = 3;
  });
  control_.Update([](RunStatus& status) { status.phase = TrainerPhase::kEvaluating; });
  EXPECT_EQ(control_.status().run_name, "run");
  EXPECT_EQ(control_.status().step, 3);
  EXPECT_EQ(NameOf(control_.status().phase), "evaluating");
}

TEST_F(RunControlTest, PauseHoldsTheLoopUntilResume) {
  control_.WaitWhilePaused([] {});  // not paused: returns
  control_.RequestPause(true);
  control_.RequestPause(true);  // once is enough
  EXPECT_TRUE(control_.pause_requested());
  std::atomic<bool> is_resumed = false;
  absl::Notification is_paused, went_on;
  EXPECT_OK(control_.RequestSave());
  std::thread loop([&] {
    control_.WaitWhilePaused([&] { is_paused.Notify(); });
    EXPECT_TRUE(is_resumed);
    went_on.Notify();
  });
  is_paused.WaitForNotification();
  EXPECT_FALSE(went_on.WaitForNotificationWithTimeout(absl::Milliseconds(50)));
  is_resumed = true;
  control_.RequestPause(false);
  went_on.WaitForNotification();
  loop.join();
  EXPECT_FALSE(control_.pause_requested());
}

// Liveness counts a wait as a pause only in this phase, so no moment may be without it.
TEST_F(RunControlTest, APauseIsAPhase) {
  control_.SetPhase(TrainerPhase::kRunning);
  control_.RequestPause(true);
  EXPECT_OK(control_.RequestSave());
  control_.WaitWhilePaused([&] {
    EXPECT_TRUE(control_.is_paused());
    control_.RequestPause(false);
  });
  EXPECT_EQ(control_.status().phase, TrainerPhase::kRunning);
}

TEST_F(RunControlTest, StopEndsAPause) {
  control_.RequestPause(true);
  std::thread loop([&] { control_.WaitWhilePaused([] {}); });
  EXPECT_FALSE(control_.stop_requested());
  control_.RequestStop(kExitStopped);
  control_.RequestStop(kExitStopped);
  EXPECT_TRUE(control_.stop_requested());
  loop.join();
}

TEST_F(RunControlTest, APersonsStopOutlastsASignalAndEachIsPassedOnOnce) {
  std::vector<ExitCode> passed_on;
  EXPECT_EQ(control_.stop_code(), kExitOk);
  control_.RequestStop(kExitStopped);
  control_.PassStopsOn([&](ExitCode code) { passed_on.push_back(code); });
  EXPECT_THAT(passed_on, ElementsAre(kExitStopped));
  control_.RequestStop(kExitStoppedByUser);
  control_.RequestStop(kExitStopped);
  EXPECT_EQ(control_.stop_code(), kExitStoppedByUser);
  EXPECT_THAT(passed_on, ElementsAre(kExitStopped, kExitStoppedByUser));
  RunControl other;
  other.PassStopsOn([&](ExitCode code) { passed_on.push_back(code); });
  other.PassStopsOn(nullptr);
  other.RequestStop(kExitStopped);
  EXPECT_EQ(passed_on.size(), 2u);
}

TEST_F(RunControlTest, SaveRequestsAreTakenOnce) {
  EXPECT_FALSE(control_.TakeSaveRequest());
  EXPECT_OK(control_.RequestSave());
  EXPECT_OK(control_.RequestSave());
  EXPECT_TRUE(control_.TakeSaveRequest());
  EXPECT_FALSE(control_.TakeSaveRequest());
  EXPECT_OK(control_.RequestSave());  // while the loop saves: the next checkpoint is for it
  EXPECT_TRUE(control_.TakeSaveRequest());
  control_.Update([](RunStatus& status) { status.phase = TrainerPhase::kFinished; });
  EXPECT_ERROR(control_.RequestSave(), kUnavailable, "the run has finished");
}

TEST_F(RunControlTest, SaveDuringAPauseIsServed) {
  control_.RequestPause(true);
  for (int i = 0; i < 3; ++i) {
    EXPECT_OK(control_.RequestSave());
    absl::Notification is_saved;
    std::thread loop([&] { control_.WaitWhilePaused([&] { is_saved.Notify(); }); });
    is_saved.WaitForNotification();
    control_.RequestPause(false);
    loop.join();
    control_.RequestPause(true);
  }
}

}  // namespace
}  // namespace taopd::testing
