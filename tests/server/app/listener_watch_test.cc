#include "server/app/listener_watch.h"

#include <absl/synchronization/notification.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

constexpr absl::Duration kShort = absl::Milliseconds(50);
constexpr absl::Duration kLong = absl::Seconds(20);

// A socket that listens. Nobody accepts: the system completes connections all the same.
class Backlog {
 public:
  Backlog() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(socket_, 64), 0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~Backlog() { Close(); }
  void Close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }
  // Takes the connections that wait and answers each with `reply`, or hangs up if that is empty.
  void ServeOne(const std::string& reply) {
    const int connection = ::accept(socket_, nullptr, nullptr);
    char hello[64];
    EXPECT_GT(::recv(connection, hello, sizeof(hello), 0), 0);
    EXPECT_EQ(::send(connection, reply.data(), reply.size(), 0), ssize_t(reply.size()));
    ::close(connection);
  }
  WatchedListener AsListener(const std::string& host = "127.0.0.1") const {
    return {"test", host, port_, "hello"};
  }

 private:
  int socket_;
  int port_ = 0;
};

TEST(ProbeListenerTest, AByteAndAHangUpAreAnswers) {
  for (const std::string reply : {"x", ""}) {
    Backlog backlog;
    std::thread server([&] { backlog.ServeOne(reply); });
    EXPECT_OK(ProbeListener(backlog.AsListener("0.0.0.0"), kLong));
    server.join();
  }
}

TEST(ProbeListenerTest, AListenerThatNobodyAcceptsFromIsDead) {
  const Backlog backlog;
  EXPECT_ERROR(ProbeListener(backlog.AsListener(), kShort), kUnavailable, "does not answer");
}

TEST(ProbeListenerTest, AClosedPortIsDead) {
  Backlog backlog;
  backlog.Close();
  EXPECT_ERROR(ProbeListener(backlog.AsListener(), kLong), kUnavailable, "cannot connect");
}

TEST(ListenerWatchTest, ReportsADeadListenerAfterSeveralFailuresAndItsReturn) {
  Backlog backlog;
  absl::Mutex mutex;
  std::vector<absl::Status> reports;
  // Waits for a report. Returns a copy, because more reports may come at any time.
  const auto report = [&](size_t index) {
    absl::MutexLock lock(&mutex);
    const auto reached = [&] { return reports.size() > index; };
    mutex.Await(absl::Condition(&reached));
    return reports[index];
  };
  const ListenerWatch::Options options = {
      .interval = absl::Milliseconds(1), .timeout = kShort, .num_failures = 2};
  ListenerWatch watch({backlog.AsListener()}, options, [&](const absl::Status& status) {
    absl::MutexLock lock(&mutex);
    reports.push_back(status);
  });
  EXPECT_ERROR(report(0), kUnavailable, "the test listener has not answered 2 times");
  // From now on connections are answered; those of the failed probes come first.
  absl::Notification end;
  std::thread server([&] {
    while (!end.HasBeenNotified()) backlog.ServeOne("x");
  });
  EXPECT_OK(report(1));
  end.Notify();
  server.join();  // the watch goes on, so the server does not wait for its last connection
}

}  // namespace
}  // namespace taopd::testing
