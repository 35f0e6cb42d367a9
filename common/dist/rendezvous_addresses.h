// The address of this machine at which a rank listens, and the address where it looks for the store
// of rank 0. Does not use LibTorch.
#pragma once

#include <absl/time/time.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace taopd {

struct RendezvousAddresses {
  // The numeric address of this machine at which a rank listens for others.
  std::string own_address;
  // The address at which this machine reaches the master: master_addr, or own_address if
  // master_addr is this machine's own name and resolves to a loopback address here.
  std::string master;
};

// Returns the numeric addresses of a host name, or of an address itself; empty if there are none.
using Resolver = std::function<std::vector<std::string>(const std::string& host)>;
std::vector<std::string> ResolveHost(const std::string& host);

// Finds the addresses. `interface` is the name of a network interface ("eth1"), or an address
// of this machine. If it is empty, own_address is the one that this machine uses on the route to
// the master, as the kernel's routes say; nothing is sent. /etc/hosts often gives a machine's own
// name a loopback address (127.0.1.1 on Debian), at which no other machine finds it. The master
// itself then uses the address of the default route, or of the first interface that is up. The
// loopback is meant only if master_addr is itself a loopback address, or "localhost", or empty.
//
// Returns INVALID_ARGUMENT with the existing interfaces if this machine does not have the requested
// one.
absl::StatusOr<RendezvousAddresses> FindRendezvousAddresses(const std::string& interface,
                                                            const std::string& master_addr,
                                                            const Resolver& resolve = ResolveHost);

// Returns a socket that listens at a numeric address of this machine; for port 0 the system picks
// the port. Returns UNAVAILABLE if the port is in use.
absl::StatusOr<int> ListenAt(const std::string& address, int port);
// Returns a socket that is connected to a numeric address, or UNAVAILABLE with the system's reason,
// which is a time-out if nothing answers within `timeout`.
absl::StatusOr<int> ConnectTo(const std::string& address, int port, absl::Duration timeout);
// Returns the numeric address and the port of this end of a socket.
std::pair<std::string, int> LocalName(int fd);

// Returns the name of this machine, by which ranks recognize that they share it.
std::string OwnHostName();

bool IsLoopback(const std::string& address);

}  // namespace taopd
