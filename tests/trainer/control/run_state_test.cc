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

TEST(RunStateTest, StatusIsWhatTheLoopPublished) {
  RunState state;
  EXPECT_EQ(state.status().phase, TrainerPhase::kStarting);
  state.Update([](RunStatus& status) {
    status.run_name = "run";
    status.step = 3;
  });
  state.Update([](RunStatus& status) { status.phase = TrainerPhase::kEvaluating; });
  EXPECT_EQ(state.status().run_name, "run");
  EXPECT_EQ(state.status().step, 3);
  EXPECT_EQ(NameOf(state.status().phase), "evaluating");
}

TEST(RunStateTest, PauseHoldsTheLoopUntilResume) {
  RunState state;
  state.WaitWhilePaused([] {});  // not paused: returns
  state.RequestPause(true);
  state.RequestPause(true);  // once is enough
  EXPECT_TRUE(state.pause_requested());
  std::atomic<bool> is_resumed = false;
  absl::Notification is_paused, went_on;
  EXPECT_OK(state.RequestSave());
  std::thread loop([&] {
    state.WaitWhilePaused([&] { is_paused.Notify(); });
    EXPECT_TRUE(is_resumed);
    went_on.Notify();
  });
  is_paused.WaitForNotification();
  EXPECT_FALSE(went_on.WaitForNotificationWithTimeout(absl::Milliseconds(50)));
  is_resumed = true;
  state.RequestPause(false);
  went_on.WaitForNotification();
  loop.join();
  EXPECT_FALSE(state.pause_requested());
}

// Liveness counts a wait as a pause only in this phase, so no moment may be without it.
TEST(RunStateTest, APauseIsAPhase) {
  RunState state;
  state.SetPhase(TrainerPhase::kRunning);
  state.RequestPause(true);
  EXPECT_OK(state.RequestSave());
  state.WaitWhilePaused([&] {
    EXPECT_TRUE(state.is_paused());
    state.RequestPause(false);
  });
  EXPECT_EQ(state.status().phase, TrainerPhase::kRunning);
}

TEST(RunStateTest, StopEndsAPause) {
  RunState state;
  state.RequestPause(true);
  std::thread loop([&] { state.WaitWhilePaused([] {}); });
  EXPECT_FALSE(state.stop_requested());
  state.RequestStop(kExitStopped);
  state.RequestStop(kExitStopped);
  EXPECT_TRUE(state.stop_requested());
  loop.join();
}

TEST(RunStateTest, APersonsStopOutlastsASignalAndEachIsPassedOnOnce) {
  RunState state;
  std::vector<ExitCode> passed_on;
  EXPECT_EQ(state.stop_code(), kExitOk);
  state.RequestStop(kExitStopped);
  state.PassStopsOn([&](ExitCode code) { passed_on.push_back(code); });
  EXPECT_THAT(passed_on, ElementsAre(kExitStopped));
  state.RequestStop(kExitStoppedByUser);
  state.RequestStop(kExitStopped);
  EXPECT_EQ(state.stop_code(), kExitStoppedByUser);
  EXPECT_THAT(passed_on, ElementsAre(kExitStopped, kExitStoppedByUser));
  RunState other;
  other.PassStopsOn([&](ExitCode code) { passed_on.push_back(code); });
  other.PassStopsOn(nullptr);
  other.RequestStop(kExitStopped);
  EXPECT_EQ(passed_on.size(), 2u);
}

TEST(RunStateTest, SaveRequestsAreTakenOnce) {
  RunState state;
  EXPECT_FALSE(state.TakeSaveRequest());
  EXPECT_OK(state.RequestSave());
  EXPECT_OK(state.RequestSave());
  EXPECT_TRUE(state.TakeSaveRequest());
  EXPECT_FALSE(state.TakeSaveRequest());
  EXPECT_OK(state.RequestSave());  // while the loop saves: the next checkpoint is for it
  EXPECT_TRUE(state.TakeSaveRequest());
  state.Update([](RunStatus& status) { status.phase = TrainerPhase::kFinished; });
  EXPECT_ERROR(state.RequestSave(), kUnavailable, "the run has finished");
}

TEST(RunStateTest, SaveDuringAPauseIsServed) {
  RunState state;
  state.RequestPause(true);
  for (int i = 0; i < 3; ++i) {
    EXPECT_OK(state.RequestSave());
    absl::Notification is_saved;
    std::thread loop([&] { state.WaitWhilePaused([&] { is_saved.Notify(); }); });
    is_saved.WaitForNotification();
    state.RequestPause(false);
    loop.join();
    state.RequestPause(true);
  }
}

}  // namespace
}  // namespace taopd::testing
