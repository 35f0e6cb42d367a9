#include "server/net/listener.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include "tests/support/raw_sockets.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

TEST(HostPortTest, BracketsIpv6) {
  EXPECT_EQ(HostPort("::1", 5), "[::1]:5");
  EXPECT_EQ(HostPort("127.0.0.1", 5), "127.0.0.1:5");
}

TEST(ListenerTest, NameOfThisMachineIsItsIpv4Address) {
  ASSERT_OK_AND_ASSIGN(auto listener, Listener::Open("localhost", 0));
  RawClient client(listener.port());  // of 127.0.0.1
  // The system may complete the connection a moment after the client sees it.
  pollfd waiting = {listener.fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&waiting, 1, /*timeout=*/20'000), 1);
  AcceptedSocket socket;
  ASSERT_EQ(listener.Accept(&socket), Listener::Result::kAccepted);
  EXPECT_EQ(socket.address, "127.0.0.1");
  ::close(socket.fd);
  EXPECT_EQ(listener.Accept(&socket), Listener::Result::kNone);
}

}  // namespace
}  // namespace taopd::testing
