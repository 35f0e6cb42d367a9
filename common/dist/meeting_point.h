// Where on this machine a rank listens, and where it looks for the store of rank 0. No LibTorch.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

struct MeetingPoint {
  // The numeric address of this machine at which a rank listens for others.
  std::string own_address;
  // The master as this machine reaches it: master_addr, or own_address where the name is this
  // machine's own and means a loopback address here.
  std::string master;
};

// The numeric addresses of a host name, or of an address itself; empty if there are none.
using Resolver = std::function<std::vector<std::string>(const std::string& host)>;
std::vector<std::string> ResolveHost(const std::string& host);

// `interface` is the name of a network interface ("eth1"), or an address of this machine. If it is
// empty, the own address is the one that this machine has on its way to the master, as the kernel's
// routes say; nothing is sent. /etc/hosts often gives a machine's own name a loopback address
// (127.0.1.1 on Debian), at which no other machine finds it: for the master itself it is then the
// address of the default route, or of the first interface that is up. Only a master_addr that is
// itself a loopback address, or "localhost", or empty, means the loopback.
//
// Returns INVALID_ARGUMENT, with the interfaces that there are, if this machine has no such one.
absl::StatusOr<MeetingPoint> FindMeetingPoint(const std::string& interface,
                                              const std::string& master_addr,
                                              const Resolver& resolve = ResolveHost);

// A listening socket at a numeric address of this machine. Returns UNAVAILABLE if the port is in use.
absl::StatusOr<int> ListenAt(const std::string& address, int port);

// The name of this machine, by which ranks that share it know each other.
std::string OwnHostName();

bool IsLoopback(const std::string& address);

}  // namespace taopd
