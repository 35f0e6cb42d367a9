#include "common/dist/collective_watch.h"

#include <absl/synchronization/notification.h>
#include <absl/time/clock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>

namespace taopd::testing {
namespace {

// The watch of a test, and what it has reported.
struct Watched {
  absl::Notification failed, stuck;
  CollectiveWatch::Collective collective;
  std::string error;
  CollectiveWatch watch;

  explicit Watched(absl::Duration grace)
      : watch({.poll = absl::Milliseconds(1),
               .grace = grace,
               .on_failure =
                   [this](const CollectiveWatch::Collective& first, const std::string& what) {
                     collective = first;
                     error = what;
                     failed.Notify();
                   },
               .on_stuck = [this] { stuck.Notify(); }}) {}

  void Add(int64_t number, absl::Time deadline, std::function<bool()> has_ended) {
    watch.Add({"all_reduce", number, deadline, std::move(has_ended)});
  }
};

constexpr absl::Duration kLong = absl::Seconds(60);  // longer than any test takes

TEST(CollectiveWatchTest, ForgetsWhatHasEnded) {
  std::atomic<bool> ended = false;
  const auto kept = std::make_shared<int>(1);  // as a collective keeps its tensors
  absl::Notification third;
  Watched watched(kLong);
  watched.Add(1, absl::Now() + kLong, [&ended, kept] { return ended.load(); });
  watched.Add(2, absl::InfinitePast(), [] { return true; });  // late, but it has ended
  ended = true;
  watched.Add(3, absl::Now() + kLong, [&third] {
    if (!third.HasBeenNotified()) third.Notify();
    return true;
  });
  ASSERT_TRUE(third.WaitForNotificationWithTimeout(kLong));
  EXPECT_FALSE(watched.failed.HasBeenNotified());
  EXPECT_EQ(kept.use_count(), 1);
}

TEST(CollectiveWatchTest, NamesTheFirstLateOneAndEndsAProcessThatIsStuck) {
  Watched watched(absl::Milliseconds(1));
  watched.Add(1, absl::Now() + kLong, [] { return true; });
  watched.Add(2, absl::Now(), [] { return false; });
  watched.Add(3, absl::InfinitePast(), [] { return false; });
  ASSERT_TRUE(watched.failed.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(watched.collective.number, 2);
  EXPECT_EQ(watched.collective.name, "all_reduce");
  EXPECT_EQ(watched.error, "");
  EXPECT_TRUE(watched.stuck.WaitForNotificationWithTimeout(kLong));
}

TEST(CollectiveWatchTest, ReportsAnErrorBeforeTheDeadline) {
  Watched watched(kLong);
  watched.Add(1, absl::Now() + kLong, []() -> bool { throw std::runtime_error("lost a peer"); });
  ASSERT_TRUE(watched.failed.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(watched.error, "lost a peer");
}

TEST(CollectiveWatchTest, AProcessThatEndsIsNotStuck) {
  absl::Notification failed;
  std::atomic<bool> stuck = false;
  {
    CollectiveWatch watch({.poll = absl::Milliseconds(1),
                           .grace = kLong,
                           .on_failure = [&](const auto&, const auto&) { failed.Notify(); },
                           .on_stuck = [&] { stuck = true; }});
    watch.Add({"all_reduce", 1, absl::InfinitePast(), [] { return false; }});
    ASSERT_TRUE(failed.WaitForNotificationWithTimeout(kLong));
  }  // does not wait for the grace
  EXPECT_FALSE(stuck);
}

}  // namespace
}  // namespace taopd::testing
