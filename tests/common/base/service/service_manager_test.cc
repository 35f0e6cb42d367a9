// Reads the messages to a service manager on a datagram socket of the test.
#include "common/base/service/service_manager.h"

#include <absl/synchronization/notification.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>

#include "common/base/file_descriptor.h"
#include "common/base/status.h"

namespace taopd::testing {
namespace {

class ServiceManagerTest : public ::testing::Test {
 protected:
  ServiceManagerTest() : fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    // An address of the kernel's choice: an abstract name.
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socklen_t size = sizeof(address.sun_family);
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    size = sizeof(address);
    EXPECT_EQ(::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    const size_t length = size - offsetof(sockaddr_un, sun_path);
    const timeval limit = {.tv_sec = 20, .tv_usec = 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    ::setenv("NOTIFY_SOCKET", Concat("@", std::string(address.sun_path + 1, length - 1)).c_str(),
             1);
  }
  ~ServiceManagerTest() override {
    for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) ::unsetenv(name);
  }
  static void SetWatchdog(int64_t microseconds, int64_t pid) {
    ::setenv("WATCHDOG_USEC", Concat(microseconds).c_str(), 1);
    ::setenv("WATCHDOG_PID", Concat(pid).c_str(), 1);
  }
  // Waits for the next message.
  std::string Next() {
    char buffer[256];
    const ssize_t size = ::recv(fd_.get(), buffer, sizeof(buffer), 0);
    return size < 0 ? "nothing" : std::string(buffer, size);
  }
  bool IsEmpty() {
    char byte = 0;
    return ::recv(fd_.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0;
  }
  const FileDescriptor fd_;
};

TEST_F(ServiceManagerTest, SaysWhatHappens) {
  ServiceManager service;
  service.Ready();
  service.Stopping();
  EXPECT_EQ(Next(), "READY=1");
  EXPECT_EQ(Next(), "STOPPING=1");
}

TEST_F(ServiceManagerTest, SocketsMayHavePaths) {
  const FileDescriptor fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = Concat(::testing::TempDir(), "/notify-", ::getpid());
  ASSERT_LT(path.size(), sizeof(address.sun_path));
  path.copy(address.sun_path, path.size());
  ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
  ServiceManager().Ready();
  char buffer[16];
  EXPECT_EQ(::recv(fd.get(), buffer, sizeof(buffer), 0), 7);
  ::unlink(path.c_str());
}

TEST_F(ServiceManagerTest, TheWatchdogIsFedWhileTheServiceIsAlive) {
  SetWatchdog(20'000, ::getpid());
  std::atomic<int> num_asked = 0;
  {
    ServiceManager service;
    absl::Notification was_dead;
    service.WatchWith([&] {
      const int i = num_asked++;
      if (i == 4) was_dead.Notify();
      return i < 2;  // alive twice, then dead
    });
    was_dead.WaitForNotification();
  }
  EXPECT_EQ(Next(), "WATCHDOG=1");
  EXPECT_EQ(Next(), "WATCHDOG=1");
  EXPECT_TRUE(IsEmpty());
}

TEST_F(ServiceManagerTest, AnotherProcessesWatchdogAndThatOfNoManagerAreNotFed) {
  for (const bool has_manager : {true, false}) {
    SetWatchdog(20'000, ::getpid() + (has_manager ? 1 : 0));
    if (!has_manager) ::unsetenv("NOTIFY_SOCKET");
    bool is_asked = false;
    {
      ServiceManager service;
      if (!has_manager) service.Ready();
      service.WatchWith([&] { return is_asked = true; });
    }
    EXPECT_FALSE(is_asked);
    EXPECT_TRUE(IsEmpty());
  }
}

TEST_F(ServiceManagerTest, AManagerThatIsGoneIsNoFailure) {
  for (const std::string& socket : {std::string("/nowhere/notify"), std::string(300, 'x')}) {
    ::setenv("NOTIFY_SOCKET", socket.c_str(), 1);
    ServiceManager().Ready();
  }
}

}  // namespace
}  // namespace taopd::testing
