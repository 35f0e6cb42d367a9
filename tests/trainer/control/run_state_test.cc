// The loop and the servers talk to each other, with threads in both roles.
#include <absl/synchronization/notification.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/support/status_matchers.h"
#include "trainer/control/run_state.h"

namespace taopd::testing {
namespace {

class RunStateTest : public ::testing::Test {
 protected:
  RunState state_;
};

TEST_F(RunStateTest, StatusIsWhatTheLoopPublished) {
  EXPECT_EQ(state_.status().phase, TrainerPhase::kStarting);
  state_.Update([](RunStatus& status) {
    status.run_name = "run";
    status.step = 3;
  });
  state_.Update([](RunStatus& status) { status.phase = TrainerPhase::kEvaluating; });
  EXPECT_EQ(state_.status().run_name, "run");
  EXPECT_EQ(state_.status().step, 3);
  EXPECT_EQ(NameOf(state_.status().phase), "evaluating");
}

TEST_F(RunStateTest, PauseHoldsTheLoopUntilResume) {
  state_.WaitWhilePaused([] {});  // not paused: returns
  state_.RequestPause(true);
  state_.RequestPause(true);  // once is enough
  EXPECT_TRUE(state_.pause_requested());
  std::atomic<bool> is_resumed = false;
  absl::Notification is_paused, went_on;
  EXPECT_OK(state_.RequestSave());
  std::thread loop([&] {
    state_.WaitWhilePaused([&] { is_paused.Notify(); });
    EXPECT_TRUE(is_resumed);
    went_on.Notify();
  });
  is_paused.WaitForNotification();
  EXPECT_FALSE(went_on.WaitForNotificationWithTimeout(absl::Milliseconds(50)));
  is_resumed = true;
  state_.RequestPause(false);
  went_on.WaitForNotification();
  loop.join();
  EXPECT_FALSE(state_.pause_requested());
}

// Liveness counts a wait as a pause only in this phase, so no moment may be without it.
TEST_F(RunStateTest, APauseIsAPhase) {
  state_.SetPhase(TrainerPhase::kRunning);
  state_.RequestPause(true);
  EXPECT_OK(state_.RequestSave());
  state_.WaitWhilePaused([&] {
    EXPECT_TRUE(state_.is_paused());
    state_.RequestPause(false);
  });
  EXPECT_EQ(state_.status().phase, TrainerPhase::kRunning);
}

TEST_F(RunStateTest, StopEndsAPause) {
  state_.RequestPause(true);
  std::thread loop([&] { state_.WaitWhilePaused([] {}); });
  EXPECT_FALSE(state_.stop_requested());
  state_.RequestStop(kExitStopped);
  state_.RequestStop(kExitStopped);
  EXPECT_TRUE(state_.stop_requested());
  loop.join();
}

TEST_F(RunStateTest, APersonsStopOutlastsASignalAndEachIsPassedOnOnce) {
  std::vector<ExitCode> passed_on;
  EXPECT_EQ(state_.stop_code(), kExitOk);
  state_.RequestStop(kExitStopped);
  state_.PassStopsOn([&](ExitCode code) { passed_on.push_back(code); });
  EXPECT_THAT(passed_on, ElementsAre(kExitStopped));
  state_.RequestStop(kExitStoppedByUser);
  state_.RequestStop(kExitStopped);
  EXPECT_EQ(state_.stop_code(), kExitStoppedByUser);
  EXPECT_THAT(passed_on, ElementsAre(kExitStopped, kExitStoppedByUser));
  RunState other;
  other.PassStopsOn([&](ExitCode code) { passed_on.push_back(code); });
  other.PassStopsOn(nullptr);
  other.RequestStop(kExitStopped);
  EXPECT_EQ(passed_on.size(), 2u);
}

TEST_F(RunStateTest, SaveRequestsAreTakenOnce) {
  EXPECT_FALSE(state_.TakeSaveRequest());
  EXPECT_OK(state_.RequestSave());
  EXPECT_OK(state_.RequestSave());
  EXPECT_TRUE(state_.TakeSaveRequest());
  EXPECT_FALSE(state_.TakeSaveRequest());
  EXPECT_OK(state_.RequestSave());  // while the loop saves: the next checkpoint is for it
  EXPECT_TRUE(state_.TakeSaveRequest());
  state_.Update([](RunStatus& status) { status.phase = TrainerPhase::kFinished; });
  EXPECT_ERROR(state_.RequestSave(), kUnavailable, "the run has finished");
}

TEST_F(RunStateTest, SaveDuringAPauseIsServed) {
  state_.RequestPause(true);
  for (int i = 0; i < 3; ++i) {
    EXPECT_OK(state_.RequestSave());
    absl::Notification is_saved;
    std::thread loop([&] { state_.WaitWhilePaused([&] { is_saved.Notify(); }); });
    is_saved.WaitForNotification();
    state_.RequestPause(false);
    loop.join();
    state_.RequestPause(true);
  }
}

}  // namespace
}  // namespace taopd::testing
