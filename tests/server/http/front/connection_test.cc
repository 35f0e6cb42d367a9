// One connection over a pair of sockets whose buffers the tests fill.
#include "server/http/front/connection.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <memory>

#include "common/base/file_descriptor.h"

namespace taopd::testing {
namespace {

class FakeHandler final : public FrontHandler {
 public:
  std::optional<WireAnswer> Admit(const RequestHead&, Access, const std::string&) override {
    return std::nullopt;
  }
  bool IsProbe(const RequestHead&) const override { return false; }
  WireAnswer Refuse(const Refusal&, const RequestHead&, const std::string&) override {
    return {.head = "HTTP/1.1 503 Full\r\n\r\n", .body = "", .close = true};
  }
  void Handle(Exchange&) override { FAIL() << "nothing is dispatched"; }
};

class ConnectionTest : public ::testing::Test {
 protected:
  ConnectionTest() {
    std::array<int, 2> pair{-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair.data()), 0);
    client_ = FileDescriptor(pair[0]);
    const AcceptedSocket socket = {
        .fd = pair[1], .address = "127.0.0.1", .subscriber = "127.0.0.1"};
    connection_ =
        std::make_unique<Connection>(1, socket, /*tls=*/nullptr, Access::kAll, &shared_, now_);
  }
  // The client reads nothing, so the connection can send nothing from now on.
  void FillSendBuffer() {
    while (::send(connection_->fd(), "x", 1, MSG_DONTWAIT) == 1) continue;
  }
  void Receive(const std::string& bytes) {
    ASSERT_EQ(::send(client_.get(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
    connection_->Run(now_);
  }

  const absl::Time now_ = absl::UnixEpoch();
  const FrontLimits limits_;
  FakeHandler handler_;
  ByteBudget budget_{1 << 20};
  ClientAmounts clients_;
  CallTracker tracker_;
  Connection::Shared shared_ = {.limits = limits_,
                                .handler = handler_,
                                .budget = budget_,
                                .connections = clients_,
                                .tracker = tracker_,
                                .dispatch = {},
                                .make_room = {},
                                .on_finished = {}};
  FileDescriptor client_;
  std::unique_ptr<Connection> connection_;
};

TEST_F(ConnectionTest, EndsIfAContinueDoesNotFit) {
  FillSendBuffer();
  Receive("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(connection_->state(), Connection::State::kClosed);
}

TEST_F(ConnectionTest, EvictionGivesMemoryBackBeforeTheAnswerHasLeft) {
  Receive("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4000\r\n\r\n" + std::string(3000, 'x'));
  EXPECT_GE(budget_.num_used(), 3000);
  FillSendBuffer();
  connection_->Evict(now_);
  EXPECT_EQ(connection_->state(), Connection::State::kSending);
  EXPECT_EQ(budget_.num_used(), 0);
}

}  // namespace
}  // namespace taopd::testing
