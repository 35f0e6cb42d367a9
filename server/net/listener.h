// A listening TCP socket and the sockets that it accepts.
#pragma once

#include <string>
#include <utility>

#include "common/base/file_descriptor.h"
#include "common/base/status.h"

namespace taopd {

struct AcceptedSocket {
  int fd = -1;             // does not block; closed on exec
  std::string address;     // the client's, without the port; IPv4 whatever the listener's family
  std::string subscriber;  // SubscriberOf (client_name.h) of the address
};

// Returns "host:port", with brackets around an IPv6 address.
std::string HostPort(const std::string& host, int port);

class Listener {
 public:
  enum class Result {
    kAccepted,
    kNone,           // nobody waits
    kNoDescriptors,  // a client waits, but the process or the system has no descriptors
    kDead,           // the socket will never accept again
  };

  // Listens on a port; 0 lets the system pick one. A name with addresses of both families means the
  // IPv4 address. Returns UNAVAILABLE with the reason if it cannot listen. A second listener on the
  // same port fails.
  static absl::StatusOr<Listener> Open(const std::string& host, int port);

  int fd() const { return fd_.get(); }
  int port() const { return port_; }
  Result Accept(AcceptedSocket* accepted);
  // Closes the socket and the kernel's queue. Accept must not be called again.
  void Close() { fd_.Close(); }

 private:
  Listener(FileDescriptor fd, int port) : fd_(std::move(fd)), port_(port) {}
  FileDescriptor fd_;
  int port_;
};

}  // namespace taopd
