// Tests of the saves before a run ends.
#include "trainer/loop/run_lifecycle.h"

#include <absl/time/clock.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "tests/common/dist/rank_threads.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/step/tiny_training.h"

namespace taopd::testing {
namespace {

class RunLifecycleTest : public ::testing::Test {
 protected:
  // The run is one step old.
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StartTinyRun(&run_));
    ++run_.state().step;
    lifecycle_.OnPrepare([this] {
      ++num_prepared_;
      return prepared_;
    });
  }

  const TempDir dir_;
  CheckpointedRun run_{{.name = "run",
                        .run_dir = dir_.File("run"),
                        .total_steps = 10,
                        .dtype = "float32",
                        .device = "cpu"}};
  RunControl control_;
  PlannedMemory memory_ = {.table = "a table"};
  RunLifecycle lifecycle_{&run_, &control_, {.start = absl::Now()}};
  absl::Status prepared_;
  int num_prepared_ = 0;
};

// As the ETA of ConsoleSinkTest.EtaLeavesOutPauses.
TEST_F(RunLifecycleTest, TheTimeUntilTheLastStepCountsSavesAndEvaluations) {
  const auto eta_after = [&](int64_t step, const Metrics& metrics) {
    run_.state().step = step;
    lifecycle_.ShowStep(metrics);
    return control_.status().eta_seconds;
  };
  EXPECT_EQ(eta_after(1, {{"time/step_s", 2}, {"time/save_s", 0}, {"time/evaluation_s", 0}}), 18);
  EXPECT_EQ(eta_after(2, {{"time/step_s", 4}, {"time/save_s", 1}, {"time/evaluation_s", 3}}), 40);
  EXPECT_EQ(eta_after(10, {{"time/step_s", 2}}), 0);
}

TEST_F(RunLifecycleTest, EachSaveIsPreparedOnce) {
  ASSERT_OK(lifecycle_.SaveUntilStored());
  EXPECT_EQ(num_prepared_, 1);
  ++run_.state().step;
  ASSERT_OK(lifecycle_.Save());
  EXPECT_EQ(num_prepared_, 2);
}

TEST_F(RunLifecycleTest, AStateIsSavedOnceBeforeTheRunEnds) {
  ASSERT_OK(lifecycle_.SaveUntilStored());
  EXPECT_TRUE(absl::IsCancelled(lifecycle_.EndStopped()));
  EXPECT_ERROR(lifecycle_.EndFailed(Internal("a failure")), kInternal, "a failure");
  EXPECT_EQ(num_prepared_, 1);
  // The rest of a step makes it another state.
  auto rest = std::make_shared<PendingStep>();
  rest->mini_batch = rest->num_mini_batches = 1;
  lifecycle_.SetPending(std::move(rest));
  ASSERT_OK(lifecycle_.SaveUntilStored());
  EXPECT_EQ(num_prepared_, 2);
  EXPECT_TRUE(
      std::filesystem::exists(dir_.File("run/checkpoints/step-000001-mini-1/manifest.json")));
}

TEST_F(RunLifecycleTest, ASaveThatWaitsForStorageIsNotPreparedAgain) {
  const std::string checkpoints = dir_.File("run/checkpoints");
  std::filesystem::rename(checkpoints, checkpoints + "-away");
  WriteFile(checkpoints, "in the way");
  std::atomic<bool> returned = false;
  std::thread repair([&] {
    while (control_.status().phase != TrainerPhase::kWaitingForStorage && !returned)
      absl::SleepFor(absl::Milliseconds(1));
    std::filesystem::remove(checkpoints);
    std::filesystem::rename(checkpoints + "-away", checkpoints);
  });
  EXPECT_OK(lifecycle_.SaveUntilStored());
  returned = true;
  repair.join();
  EXPECT_EQ(num_prepared_, 1);
  EXPECT_TRUE(std::filesystem::exists(checkpoints + "/step-000001/manifest.json"));
}

TEST_F(RunLifecycleTest, AWaitForStorageIsNoStall) {
  std::vector<int64_t> num_progress;
  const auto attempt = [&] {
    num_progress.push_back(control_.num_progress());
    if (num_progress.size() == 2) control_.RequestStop(kExitStopped);
    return Internal("no space");
  };
  EXPECT_ERROR(lifecycle_.RetryUntilStored("the model", attempt), kInternal,
               "the model is given up");
  ASSERT_EQ(num_progress.size(), 2u);
  EXPECT_LT(num_progress[0], num_progress[1]);
}

// No step has been made, so the time would allow one more.
TEST_F(RunLifecycleTest, APauseLastsAsLongAsTheTimeLimitAllows) {
  RunLifecycle limited(&run_, &control_,
                       {.start = absl::Now(), .wall_time_limit = absl::Milliseconds(1)});
  control_.RequestPause(true);
  EXPECT_TRUE(*limited.WaitForNextStep());
  EXPECT_EQ(control_.stop_code(), kExitStoppedByUser);
}

TEST_F(RunLifecycleTest, ALostDeviceOfARankEndsAWaitForStorage) {
  OnRanks(2, ProcessGroupOptions(), [&](ProcessGroup& group) {
    if (group.is_root()) {
      CheckpointedRun run({.run_dir = dir_.File("ranks"), .group = &group});
      RunLifecycle lifecycle(&run, &control_, {.start = absl::Now()});
      int num_attempts = 0;
      const absl::Status ended = lifecycle.RetryUntilStored("the model", [&] {
        ++num_attempts;
        return Internal("no space");
      });
      EXPECT_EQ(ExitCodeOf(ended), kExitInternal);
      EXPECT_EQ(num_attempts, 1);
    } else {
      EXPECT_OK(group.AgreeOnLargest(2));  // as RetryUntilStored does where the device is lost
    }
    group.Leave();
  });
}

TEST_F(RunLifecycleTest, ASaveThatCannotBePreparedDoesNotWait) {
  prepared_ = Internal("a rollout is lost");
  EXPECT_ERROR(lifecycle_.SaveUntilStored(), kInternal, "a rollout is lost");
}

TEST_F(RunLifecycleTest, ASaveThatWasAskedForIsTriedAfterEachStepUntilItSucceeds) {
  prepared_ = Internal("a rollout is lost");
  ASSERT_OK(control_.RequestSave());
  ASSERT_OK(lifecycle_.SaveIfDue(/*save_every=*/0));
  ASSERT_OK(lifecycle_.SaveIfDue(0));
  EXPECT_EQ(num_prepared_, 2);
  EXPECT_FALSE(lifecycle_.is_saved_or_saving());
  prepared_ = absl::OkStatus();
  for (int i = 0; i < 2; ++i) ASSERT_OK(lifecycle_.SaveIfDue(0));
  EXPECT_EQ(num_prepared_, 3);
  EXPECT_TRUE(lifecycle_.is_saved_or_saving());
}

TEST_F(RunLifecycleTest, ARestoredRunKeepsTheLastGoodCheckpoint) {
  const auto save_until = [&](int64_t step) {
    for (; run_.state().step <= step; ++run_.state().step) ASSERT_OK(lifecycle_.Save());
  };
  const auto kept = [&](int64_t step) { return !run_.checkpoints().Find(step)->empty(); };
  save_until(3);
  ASSERT_OK(lifecycle_.kept().Restore(run_.state().step, 2));
  save_until(5);
  EXPECT_TRUE(kept(2));
  EXPECT_FALSE(kept(3));
  // The state comes from a checkpoint within step 7.
  ASSERT_OK(lifecycle_.kept().Restore(run_.state().step, -2));
  lifecycle_.kept().MarkNewestGood();
  ++run_.state().step;
  save_until(9);
  EXPECT_TRUE(kept(5)) << "there is none of step 6";
  EXPECT_FALSE(kept(2));
}

TEST_F(RunLifecycleTest, OutOfMemorySaysWhatIsSaved) {
  const absl::Status changed = lifecycle_.EndOutOfMemory("step 2", "no room\nstack", false);
  EXPECT_EQ(ExitCodeOf(changed), kExitOutOfMemory);
  EXPECT_ERROR(changed, kResourceExhausted,
               "step 2: out of memory: no room; the newest checkpoint");
  EXPECT_EQ(num_prepared_, 0);
  const absl::Status unchanged = lifecycle_.EndOutOfMemory("step 2", "no room", true);
  EXPECT_ERROR(unchanged, kResourceExhausted, "no room; the state after step 1 is saved");
  EXPECT_EQ(num_prepared_, 1);
  // The state is saved already.
  const absl::Status saved = lifecycle_.EndOutOfMemory("step 2", "no room", true);
  EXPECT_EQ(ExitCodeOf(saved), kExitOutOfMemory);
  EXPECT_ERROR(saved, kResourceExhausted, "the state after step 1 is saved");
  EXPECT_EQ(num_prepared_, 1);
}

TEST_F(RunLifecycleTest, OutOfMemoryNamesThePlanIfThereIsOne) {
  EXPECT_EQ(NumMentions(lifecycle_.EndOutOfMemory("step 2", "no room", false), "The plan"), 0);
  RunLifecycle planned(&run_, &control_, {.start = absl::Now(), .memory = &memory_});
  EXPECT_ERROR(planned.EndOutOfMemory("step 2", "no room", false), kResourceExhausted,
               "--resume. The plan was:\na table");
}

}  // namespace
}  // namespace taopd::testing
