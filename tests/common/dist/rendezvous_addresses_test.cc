// Ranks listen on the loopback only where it is asked for by name.
#include "common/dist/rendezvous_addresses.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <deque>

#include "common/base/file_descriptor.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

Resolver Knows(const std::string& name, std::vector<std::string> addresses) {
  return [=](const std::string& host) {
    return host == name ? addresses : std::vector<std::string>();
  };
}

// Returns an address of this machine for others; empty in a sandbox that has only the loopback.
std::string PublicAddress() {
  ifaddrs* all = nullptr;
  std::string found;
  if (getifaddrs(&all) != 0) return found;
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET) continue;
    char host[NI_MAXHOST] = {};
    getnameinfo(i->ifa_addr, sizeof(sockaddr_in), host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
    if ((i->ifa_flags & IFF_UP) != 0 && found.empty() && !IsLoopback(host)) found = host;
  }
  freeifaddrs(all);
  return found;
}

TEST(RendezvousAddresses, TheLoopbackIsWhatLoopbackNamesMean) {
  const auto nobody = [](const std::string& host) {
    ADD_FAILURE() << "resolved " << host;
    return std::vector<std::string>();
  };
  for (const char* master : {"127.0.0.1", "127.0.1.1", "localhost", ""}) {
    ASSERT_OK_AND_ASSIGN(const RendezvousAddresses addresses,
                         FindRendezvousAddresses("", master, nobody));
    EXPECT_EQ(addresses.own_address, "127.0.0.1") << master;
    EXPECT_EQ(addresses.master, master);
  }
}

// Several hosts on one machine, as tests of deployments play them: each has a loopback address.
TEST(RendezvousAddresses, OtherLoopbackAddressesAreMetWhereTheyAre) {
  for (const char* master : {"127.130.0.21", "node0"}) {
    ASSERT_OK_AND_ASSIGN(const RendezvousAddresses addresses,
                         FindRendezvousAddresses("", master, [](const std::string&) {
                           return std::vector<std::string>{"127.130.0.21"};
                         }));
    EXPECT_EQ(addresses.own_address, "127.130.0.21") << master;
    EXPECT_EQ(addresses.master, master);
  }
}

// The machine's own name, which /etc/hosts gives 127.0.1.1: no other machine would find rank 0.
TEST(RendezvousAddresses, AnOwnNameIsNotTheLoopback) {
  if (PublicAddress().empty()) GTEST_SKIP() << "this machine has no address but the loopback";
  ASSERT_OK_AND_ASSIGN(const RendezvousAddresses addresses,
                       FindRendezvousAddresses("", "node0", Knows("node0", {"127.0.1.1"})));
  EXPECT_FALSE(IsLoopback(addresses.own_address)) << addresses.own_address;
  EXPECT_EQ(addresses.master, addresses.own_address)
      << "the other ranks of this machine go there, too";
}

TEST(RendezvousAddresses, AnotherMachinesNameIsKept) {
  const std::string own = PublicAddress();
  if (own.empty()) GTEST_SKIP() << "this machine has no address but the loopback";
  // The route to the master decides. This machine's address stands for one on the same network.
  ASSERT_OK_AND_ASSIGN(const RendezvousAddresses addresses,
                       FindRendezvousAddresses("", "node0", Knows("node0", {own})));
  EXPECT_EQ(addresses.own_address, own);
  EXPECT_EQ(addresses.master, "node0");
  ASSERT_OK_AND_ASSIGN(const RendezvousAddresses unknown,
                       FindRendezvousAddresses("", "node9", Knows("", {})));
  EXPECT_FALSE(IsLoopback(unknown.own_address));
  EXPECT_EQ(unknown.master, "node9") << "its name may be published later";
}

TEST(RendezvousAddresses, AnInterfaceIsNamedOrAnAddress) {
  for (const char* interface : {"lo", "127.0.0.1"}) {
    ASSERT_OK_AND_ASSIGN(
        const RendezvousAddresses addresses,
        FindRendezvousAddresses(interface, "node0", Knows("node0", {"127.0.1.1"})));
    EXPECT_EQ(addresses.own_address, "127.0.0.1");
    EXPECT_EQ(addresses.master, "127.0.0.1");
  }
  EXPECT_ERROR(FindRendezvousAddresses("eth77", "127.0.0.1"), kInvalidArgument,
               "dist.interface = eth77: this machine has no such interface or address; it has lo "
               "(127.0.0.1)");
  EXPECT_ERROR(FindRendezvousAddresses("192.0.2.7", "127.0.0.1"), kInvalidArgument,
               "dist.interface = 192.0.2.7");
}

TEST(RendezvousAddresses, ListensAtOneAddressAlone) {
  ASSERT_OK_AND_ASSIGN(const int fd, ListenAt("127.0.0.1", 0));
  const FileDescriptor closes(fd);
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  EXPECT_EQ(ntohl(address.sin_addr.s_addr), INADDR_LOOPBACK);
  EXPECT_ERROR(ListenAt("127.0.0.1", ntohs(address.sin_port)), kUnavailable,
               "rank 0 cannot listen on 127.0.0.1:");
}

// Linux drops the connections that exceed the queue of a listener that accepts none.
TEST(RendezvousAddresses, ConnectsWithinItsTime) {
  ASSERT_OK_AND_ASSIGN(const int fd, ListenAt("127.0.0.1", 0));
  const FileDescriptor closes(fd);
  ASSERT_EQ(listen(fd, 0), 0);
  std::deque<FileDescriptor> connected;
  auto next = ConnectTo("127.0.0.1", LocalName(fd).second, absl::Seconds(10));
  for (; next.ok() && connected.size() < 10;
       next = ConnectTo("127.0.0.1", LocalName(fd).second, absl::Milliseconds(100))) {
    connected.emplace_back(*next);
    timeval limit = {1, 0};
    socklen_t size = sizeof(limit);
    ASSERT_EQ(getsockopt(*next, SOL_SOCKET, SO_SNDTIMEO, &limit, &size), 0);
    EXPECT_EQ(limit.tv_sec + limit.tv_usec, 0) << "sends have the limit of the connection";
  }
  EXPECT_GE(connected.size(), 1u);
  EXPECT_ERROR(next, kUnavailable, "timed out");
}

}  // namespace
}  // namespace taopd::testing
