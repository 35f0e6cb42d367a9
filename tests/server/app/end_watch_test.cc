#include "server/app/end_watch.h"

#include <absl/synchronization/notification.h>
#include <absl/time/clock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "common/base/exit_code.h"

namespace taopd::testing {
namespace {

TEST(EndWatchTest, EndsAProcessThatWaitsForever) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto hang = [] {
    EndWatch watch;
    watch.set_waits_for("a step");
    watch.Start(absl::Milliseconds(1));
    absl::Notification().WaitForNotification();
  };
  EXPECT_EXIT(hang(), ::testing::ExitedWithCode(kExitInternal), "did not end by itself.*a step");
  const auto hang_until_signal = [] {
    sigset_t signals;
    sigfillset(&signals);
    ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    EndWatch watch;
    watch.EndAtNewRequest(signals, /*is_requested=*/false);
    ::kill(::getpid(), SIGTERM);
    std::this_thread::sleep_for(RepeatedSignals::kSameRequestFor + std::chrono::milliseconds(500));
    ::kill(::getpid(), SIGTERM);
    absl::SleepFor(absl::Seconds(30));
    std::_Exit(1);
  };
  EXPECT_EXIT(hang_until_signal(), ::testing::KilledBySignal(SIGTERM), "");
}

TEST(EndWatchTest, EndsWithItsObject) {
  EndWatch not_started;
  EndWatch started;
  started.Start(absl::Hours(1));
}

}  // namespace
}  // namespace taopd::testing
