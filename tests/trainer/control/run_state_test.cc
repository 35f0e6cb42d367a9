// What the loop and the servers say to each other, with threads in both roles.
#include <absl/synchronization/barrier.h>
#include <absl/synchronization/notification.h>
#include <absl/time/clock.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/support/status_matchers.h"
#include "trainer/control/run_state.h"

namespace taopd {
namespace {

using StringOr = absl::StatusOr<std::string>;

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
  EXPECT_STREQ(TrainerPhaseName(state.status().phase), "evaluating");
}

TEST(RunStateTest, PauseHoldsTheLoopUntilResume) {
  RunState state;
  state.WaitWhilePaused([] {});  // not paused: returns
  state.RequestPause(true);
  state.RequestPause(true);  // once is enough
  EXPECT_TRUE(state.pause_requested());
  std::atomic<bool> is_resumed = false;
  absl::Notification went_on;
  std::thread loop([&] {
    state.WaitWhilePaused([] {});
    EXPECT_TRUE(is_resumed);
    went_on.Notify();
  });
  EXPECT_FALSE(went_on.WaitForNotificationWithTimeout(absl::Milliseconds(50)));
  is_resumed = true;
  state.RequestPause(false);
  went_on.WaitForNotification();
  loop.join();
  EXPECT_FALSE(state.pause_requested());
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
  EXPECT_THAT(passed_on, ::testing::ElementsAre(kExitStopped));
  state.RequestStop(kExitStoppedByUser);
  state.RequestStop(kExitStopped);
  EXPECT_EQ(state.stop_code(), kExitStoppedByUser);
  EXPECT_THAT(passed_on, ::testing::ElementsAre(kExitStopped, kExitStoppedByUser));
  RunState other;
  other.PassStopsOn([&](ExitCode code) { passed_on.push_back(code); });
  other.PassStopsOn(nullptr);
  other.RequestStop(kExitStopped);
  EXPECT_EQ(passed_on.size(), 2u);
}

TEST(RunStateTest, SaveIsAnsweredWithThePath) {
  RunState state;
  EXPECT_FALSE(state.TakeSaveRequest());
  std::thread loop([&] {
    while (!state.TakeSaveRequest()) std::this_thread::yield();
    EXPECT_FALSE(state.TakeSaveRequest());  // once per batch
    state.CheckpointSaved(StringOr("/run/step-000007"));
  });
  const auto path = state.RequestSave(absl::InfiniteFuture());
  loop.join();
  ASSERT_OK(path);
  EXPECT_EQ(*path, "/run/step-000007");
  EXPECT_EQ(state.status().last_checkpoint, "/run/step-000007");
}

TEST(RunStateTest, FailedSaveIsToldAndTheOldPathStays) {
  RunState state;
  state.CheckpointSaved(StringOr("/run/step-000001"));
  StringOr answer = std::string("none");
  state.RequestSave([&](StringOr path) { answer = std::move(path); });
  EXPECT_TRUE(state.TakeSaveRequest());
  state.CheckpointSaved(ResourceExhausted("the disk is full"));
  EXPECT_ERROR(answer, absl::StatusCode::kResourceExhausted, "the disk is full");
  EXPECT_EQ(state.status().last_checkpoint, "/run/step-000001");
}

TEST(RunStateTest, CheckpointBegunBeforeTheRequestDoesNotAnswerIt) {
  RunState state;
  int num_first = 0, num_second = 0;
  state.RequestSave([&](StringOr) { ++num_first; });
  EXPECT_TRUE(state.TakeSaveRequest());
  state.RequestSave([&](StringOr) { ++num_second; });  // while the loop saves
  state.CheckpointSaved(StringOr("/a"));
  EXPECT_EQ(num_first, 1);
  EXPECT_EQ(num_second, 0);
  EXPECT_TRUE(state.TakeSaveRequest());
  state.CheckpointSaved(StringOr("/b"));
  EXPECT_EQ(num_first, 1);
  EXPECT_EQ(num_second, 1);
}

TEST(RunStateTest, DeadlineEndsTheWaitWhenTheLoopNeverComes) {
  RunState state;
  const absl::Time deadline = absl::Now() + absl::Milliseconds(50);
  EXPECT_ERROR(state.RequestSave(deadline), absl::StatusCode::kDeadlineExceeded, "deadline");
  EXPECT_GE(absl::Now(), deadline);
  EXPECT_FALSE(state.TakeSaveRequest());  // nobody waits for it any more
}

TEST(RunStateTest, CancelledRequestIsNotCalledBack) {
  RunState state;
  int num_calls = 0;
  const uint64_t id = state.RequestSave([&](StringOr) { ++num_calls; });
  EXPECT_TRUE(state.TakeSaveRequest());
  EXPECT_TRUE(state.CancelSave(id));
  EXPECT_FALSE(state.CancelSave(id));
  state.CheckpointSaved(StringOr("/a"));
  EXPECT_EQ(num_calls, 0);
}

TEST(RunStateTest, SaveDuringAPauseIsServed) {
  RunState state;
  state.RequestPause(true);
  std::thread loop(
      [&] { state.WaitWhilePaused([&] { state.CheckpointSaved(StringOr("/paused")); }); });
  for (int i = 0; i < 3; ++i) {
    const auto path = state.RequestSave(absl::InfiniteFuture());
    ASSERT_OK(path);
    EXPECT_EQ(*path, "/paused");
  }
  state.RequestPause(false);
  loop.join();
}

TEST(RunStateTest, FinishedRunAnswersEveryone) {
  RunState state;
  std::vector<absl::Status> answers;
  const auto record = [&](StringOr path) { answers.push_back(path.status()); };
  state.RequestSave(record);
  EXPECT_TRUE(state.TakeSaveRequest());
  state.RequestSave(record);
  state.Update([](RunStatus& status) { status.phase = TrainerPhase::kFinished; });
  state.RequestSave(record);
  ASSERT_EQ(answers.size(), 3u);
  for (const absl::Status& answer : answers) {
    EXPECT_ERROR(answer, absl::StatusCode::kUnavailable, "the run has finished");
  }
}

TEST(RunStateTest, NumberOfWaitingRequestsIsBounded) {
  RunState state;
  size_t num_refused = 0;
  for (size_t i = 0; i < RunState::kMaxSaveRequests + 5; ++i) {
    state.RequestSave([&](StringOr path) {
      EXPECT_ERROR(path, absl::StatusCode::kResourceExhausted, "the limit is 256");
      ++num_refused;
    });
  }
  EXPECT_EQ(num_refused, 5u);
}

TEST(RunStateTest, ManyThreadsAreEachAnsweredOnce) {
  RunState state;
  constexpr int kThreads = 8, kRounds = 50;
  std::atomic<bool> is_over = false;
  std::thread loop([&] {
    int64_t step = 0;
    while (!is_over) {
      state.Update([&](RunStatus& status) { status.step = ++step; });
      if (state.TakeSaveRequest()) state.CheckpointSaved(StringOr(Concat("/", step)));
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> clients;
  std::atomic<int> num_ok = 0;
  for (int t = 0; t < kThreads; ++t) {
    clients.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) num_ok += state.RequestSave(absl::InfiniteFuture()).ok();
    });
  }
  for (std::thread& client : clients) client.join();
  is_over = true;
  loop.join();
  EXPECT_EQ(num_ok, kThreads * kRounds);
}

}  // namespace
}  // namespace taopd
