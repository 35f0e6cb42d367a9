#include "server/net/poller.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>

#include "absl/time/clock.h"

namespace taopd::testing {
namespace {

constexpr int kLongMs = 20'000;

TEST(PollerTest, WakeEndsAWaitOfAnotherThreadAndNamesNoDescriptor) {
  Poller poller;
  ASSERT_TRUE(poller.is_open());
  std::thread waker([&] { poller.Wake(); });
  const absl::Time start = absl::Now();
  EXPECT_TRUE(poller.Wait(kLongMs).empty());
  EXPECT_LT(absl::Now() - start, absl::Milliseconds(kLongMs / 2));
  waker.join();
  EXPECT_TRUE(poller.Wait(0).empty());
}

TEST(PollerTest, NamesTheReadyDescriptorsThatAreWatched) {
  Poller poller;
  const int ready = ::eventfd(1, EFD_CLOEXEC);
  uint32_t watched = 0;
  poller.Watch(ready, 7, EPOLLIN, &watched);
  EXPECT_EQ(poller.Wait(kLongMs), std::vector<uint64_t>{7});
  poller.Watch(ready, 7, 0, &watched);
  EXPECT_TRUE(poller.Wait(0).empty());
  ::close(ready);
}

TEST(PollerTest, ADescriptorThatCannotBeWatchedIsTriedAgain) {
  Poller poller;
  const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);  // epoll refuses it
  uint32_t watched = 0;
  poller.Watch(fd, 7, EPOLLIN, &watched);
  EXPECT_EQ(watched, 0u);
  const int ready = ::eventfd(1, EFD_CLOEXEC);
  ASSERT_EQ(::dup2(ready, fd), fd);
  poller.Watch(fd, 7, EPOLLIN, &watched);
  EXPECT_EQ(watched, EPOLLIN);
  EXPECT_EQ(poller.Wait(kLongMs), std::vector<uint64_t>{7});
  ::close(fd);
  ::close(ready);
}

}  // namespace
}  // namespace taopd::testing
