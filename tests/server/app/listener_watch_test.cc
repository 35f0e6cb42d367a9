#include "server/app/listener_watch.h"

#include <absl/synchronization/notification.h>

#include <functional>
#include <thread>
#include <vector>

#include "tests/support/raw_sockets.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

constexpr absl::Duration kShort = absl::Milliseconds(50);
constexpr absl::Duration kLong = absl::Seconds(20);

WatchedListener Watched(const RawListener& listener, const std::string& host = "127.0.0.1") {
  return {"test", host, listener.port(), "hello"};
}

// Takes a connection that waits and answers it with `reply`, or hangs up if that is empty.
void ServeOne(RawListener* listener, const std::string& reply) {
  const FileDescriptor connection = listener->Accept();
  char hello[64];
  EXPECT_GT(::recv(connection.get(), hello, sizeof(hello), 0), 0);
  EXPECT_EQ(::send(connection.get(), reply.data(), reply.size(), 0), ssize_t(reply.size()));
}

TEST(ProbeListenerTest, AByteAndAHangUpAreAnswers) {
  for (const std::string reply : {"x", ""}) {
    RawListener listener;
    std::thread server([&] { ServeOne(&listener, reply); });
    EXPECT_OK(ProbeListener(Watched(listener, "0.0.0.0"), kLong));
    server.join();
  }
}

TEST(ProbeListenerTest, AListenerThatNobodyAcceptsFromAndAClosedPortAreDead) {
  RawListener listener;
  EXPECT_ERROR(ProbeListener(Watched(listener), kShort), kUnavailable, "does not answer");
  listener.Close();
  EXPECT_ERROR(ProbeListener(Watched(listener), kLong), kUnavailable, "cannot connect");
}

class ListenerWatchTest : public ::testing::Test {
 protected:
  std::function<void(const absl::Status&)> Record() {
    return [this](const absl::Status& status) {
      absl::MutexLock lock(&mutex_);
      reports_.push_back(status);
    };
  }
  // Waits for a report. Returns a copy, because more reports may come at any time.
  absl::Status Report(size_t index) {
    absl::MutexLock lock(&mutex_);
    const auto reached = [&] { return reports_.size() > index; };
    mutex_.Await(absl::Condition(&reached));
    return reports_[index];
  }
  // From now on connections are answered; those of the failed probes come first. End it while the
  // watch goes on, so that the server does not wait for its last connection.
  void Serve(RawListener* listener) {
    server_ = std::thread([this, listener] {
      while (!end_.HasBeenNotified()) ServeOne(listener, "x");
    });
  }
  void EndServer() {
    end_.Notify();
    server_.join();
  }

  const ListenerWatch::Options options_ = {
      .interval = absl::Milliseconds(1), .timeout = kShort, .num_failures = 2};
  RawListener listener_;

 private:
  absl::Mutex mutex_;
  std::vector<absl::Status> reports_;
  absl::Notification end_;
  std::thread server_;
};

TEST_F(ListenerWatchTest, ReportsADeadListenerAfterSeveralFailuresAndItsReturn) {
  const ListenerWatch watch({Watched(listener_)}, options_, Record());
  EXPECT_ERROR(Report(0), kUnavailable, "the test listener has not answered 2 times");
  Serve(&listener_);
  EXPECT_OK(Report(1));
  EndServer();
}

TEST_F(ListenerWatchTest, NamesTheListenerThatIsStillDeadWhenAnotherOneReturns) {
  const RawListener other;
  const ListenerWatch watch({Watched(listener_), {"other", "127.0.0.1", other.port(), "hello"}},
                            options_, Record());
  EXPECT_ERROR(Report(0), kUnavailable, "the test listener has not answered 2 times");
  Serve(&listener_);
  EXPECT_ERROR(Report(1), kUnavailable, "the other listener has not answered 2 times");
  EndServer();
}

}  // namespace
}  // namespace taopd::testing
