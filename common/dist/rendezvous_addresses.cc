#include "common/dist/rendezvous_addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "common/base/file_descriptor.h"

namespace taopd {
namespace {

// An address that the default route reaches and that is assigned to no host (RFC 5737).
constexpr char kElsewhere[] = "192.0.2.1";

std::string Numeric(const sockaddr* address) {
  const socklen_t size =
      address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  char host[NI_MAXHOST] = {};
  getnameinfo(address, size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  return host;
}

struct InterfaceAddress {
  std::string interface;
  std::string address;
};

// Returns the addresses of the interfaces that are up; IPv4 first.
std::vector<InterfaceAddress> OwnAddresses() {
  ifaddrs* all = nullptr;
  std::vector<InterfaceAddress> found;
  if (getifaddrs(&all) != 0) return found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != family) continue;
      if ((i->ifa_flags & IFF_UP) != 0) found.push_back({i->ifa_name, Numeric(i->ifa_addr)});
    }
  }
  freeifaddrs(all);
  return found;
}

struct Socket {
  sockaddr_storage address{};
  socklen_t size = 0;

  const sockaddr* pointer() const { return reinterpret_cast<const sockaddr*>(&address); }
};

// Returns the socket address of a numeric address; its size is 0 if the address is not numeric.
Socket SocketOf(const std::string& address, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  Socket result;
  if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0)
    return result;
  std::memcpy(&result.address, found->ai_addr, found->ai_addrlen);
  result.size = found->ai_addrlen;
  freeaddrinfo(found);
  return result;
}

// Closes the socket and returns UNAVAILABLE with this text and that of errno.
absl::Status Failed(int fd, const std::string& what) {
  const FileDescriptor closes(fd);
  return Unavailable(what, std::strerror(errno));
}

// Returns the address of this machine on the route to a numeric address; empty if there is no
// route.
std::string AddressToward(const std::string& address) {
  const Socket there = SocketOf(address, 9);
  if (there.size == 0) return "";
  const FileDescriptor fd(socket(there.address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (connect(fd.get(), there.pointer(), there.size) != 0) return "";
  return LocalName(fd.get()).first;
}

// Returns the address of this machine for other machines.
std::string PublicAddress() {
  const std::string routed = AddressToward(kElsewhere);
  if (!routed.empty() && !IsLoopback(routed)) return routed;
  for (const InterfaceAddress& own : OwnAddresses()) {
    if (!IsLoopback(own.address)) return own.address;
  }
  return "127.0.0.1";
}

absl::StatusOr<std::string> AddressOf(const std::string& interface) {
  std::string known;
  for (const InterfaceAddress& own : OwnAddresses()) {
    if (own.interface == interface || own.address == interface) return own.address;
    known += Concat(known.empty() ? "" : ", ", own.interface, " (", own.address, ")");
  }
  return InvalidArgument("dist.interface = ", interface,
                         ": this machine has no such interface or address; it has ", known);
}

// Returns whether the address is one that distributions give a machine's own name in /etc/hosts.
// Any other loopback address was chosen by somebody.
bool IsOfOwnName(const std::string& address) {
  return address == "127.0.1.1" || address == "127.0.0.1" || address == "::1";
}

}  // namespace

bool IsLoopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address.starts_with("::ffff:127.");
}

std::vector<std::string> ResolveHost(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  std::vector<std::string> addresses;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return addresses;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
      if (a->ai_family == family) addresses.push_back(Numeric(a->ai_addr));
    }
  }
  freeaddrinfo(found);
  return addresses;
}

absl::StatusOr<RendezvousAddresses> FindRendezvousAddresses(const std::string& interface,
                                                            const std::string& master_addr,
                                                            const Resolver& resolve) {
  RendezvousAddresses result;
  result.master = master_addr;
  const bool means_loopback =
      master_addr.empty() || master_addr == "localhost" || IsOfOwnName(master_addr);
  std::vector<std::string> master_addresses;
  if (!means_loopback) master_addresses = resolve(master_addr);
  const bool is_own_name = !master_addresses.empty() && IsOfOwnName(master_addresses[0]);
  if (!interface.empty()) {
    TAOPD_ASSIGN_OR_RETURN(result.own_address, AddressOf(interface));
  } else if (means_loopback) {
    result.own_address = master_addr == "::1" ? "::1" : "127.0.0.1";
  } else {
    if (!is_own_name && !master_addresses.empty()) {
      // The route to any loopback address starts at 127.0.0.1, where the other ranks do not look.
      result.own_address = IsLoopback(master_addresses[0]) ? master_addresses[0]
                                                           : AddressToward(master_addresses[0]);
    }
    // A rank may start before the master's name is published.
    if (result.own_address.empty()) result.own_address = PublicAddress();
  }
  if (is_own_name) result.master = result.own_address;
  return result;
}

absl::StatusOr<int> ListenAt(const std::string& address, int port) {
  const Socket where = SocketOf(address, port);
  const int fd = socket(where.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (fd < 0 || bind(fd, where.pointer(), where.size) != 0 || listen(fd, SOMAXCONN) != 0) {
    return Failed(fd, Concat("rank 0 cannot listen on ", address, ":", port, ": "));
  }
  return fd;
}

absl::StatusOr<int> ConnectTo(const std::string& address, int port, absl::Duration timeout) {
  const Socket where = SocketOf(address, port);
  const int fd = socket(where.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return Failed(fd, "");
  // The time limit of a socket's sends also limits connect(2); 0 means none.
  const auto limit_sends = [fd](const timeval& limit) {
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  };
  limit_sends(absl::ToTimeval(std::max(timeout, absl::Milliseconds(1))));
  if (connect(fd, where.pointer(), where.size) == 0) {
    limit_sends(timeval{});
    return fd;
  }
  if (errno == EINPROGRESS) errno = ETIMEDOUT;
  return Failed(fd, "");
}

std::pair<std::string, int> LocalName(int fd) {
  Socket local;
  local.size = sizeof(local.address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&local.address), &local.size) != 0)
    return {"", 0};
  char host[NI_MAXHOST] = {}, port[NI_MAXSERV] = {};
  getnameinfo(local.pointer(), local.size, host, sizeof(host), port, sizeof(port),
              NI_NUMERICHOST | NI_NUMERICSERV);
  return {host, std::atoi(port)};
}

std::string OwnHostName() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace taopd
