#include "server/net/listener.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "server/net/client_name.h"

namespace taopd {
namespace {

constexpr int kBacklog = 1024;

void NameClient(const sockaddr_storage& address, AcceptedSocket* accepted) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&address)->sin_addr, text,
              sizeof(text));
  } else if (address.ss_family == AF_INET6) {
    const in6_addr& bytes = reinterpret_cast<const sockaddr_in6*>(&address)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&bytes)) {
      inet_ntop(AF_INET, bytes.s6_addr + 12, text, sizeof(text));
    } else {
      inet_ntop(AF_INET6, &bytes, text, sizeof(text));
    }
  }
  accepted->address = text;
  accepted->subscriber = SubscriberOf(accepted->address);
}

int PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return address.ss_family == AF_INET6 ? ntohs(reinterpret_cast<sockaddr_in6*>(&address)->sin6_port)
                                       : ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

// Returns the listening socket, or none with errno set.
FileDescriptor ListenOn(const addrinfo& info) {
  FileDescriptor owned(
      ::socket(info.ai_family, info.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, info.ai_protocol));
  const int fd = owned.get();
  if (fd < 0) return owned;
  const int yes = 1, no = 0;
  // SO_REUSEPORT is not set, because a second server on the port must fail.
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (info.ai_family == AF_INET6) ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  if (::bind(fd, info.ai_addr, info.ai_addrlen) == 0 && ::listen(fd, kBacklog) == 0) return owned;
  const int reason = errno;
  owned.Close();
  errno = reason;
  return owned;
}

}  // namespace

std::string HostPort(const std::string& host, int port) {
  const bool is_ipv6 = host.find(':') != std::string::npos && host.front() != '[';
  return is_ipv6 ? Concat("[", host, "]:", port) : Concat(host, ":", port);
}

absl::StatusOr<Listener> Listener::Open(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* infos = nullptr;
  const std::string service = std::to_string(port);
  if (const int error = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &infos); error != 0) {
    return Unavailable("cannot listen on port ", port, " of ", host, ": ", ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(infos, &::freeaddrinfo);
  std::string reason = "the host has no usable address";
  // A name such as localhost has addresses of both families; clients expect the IPv4 address.
  for (const bool is_ipv4 : {true, false}) {
    for (const addrinfo* info = infos; info != nullptr; info = info->ai_next) {
      if ((info->ai_family == AF_INET) != is_ipv4) continue;
      FileDescriptor fd = ListenOn(*info);
      if (fd.get() >= 0) {
        const int bound_port = PortOf(fd.get());
        return Listener(std::move(fd), bound_port);
      }
      reason = std::strerror(errno);
    }
  }
  return Unavailable("cannot listen on port ", port, " of ", host, ": ", reason);
}

Listener::Result Listener::Accept(AcceptedSocket* accepted) {
  sockaddr_storage address{};
  for (;;) {
    socklen_t size = sizeof(address);
    accepted->fd = ::accept4(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size,
                             SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (accepted->fd >= 0) break;
    switch (errno) {
      case EAGAIN:
        return Result::kNone;
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM:
        return Result::kNoDescriptors;
      case EBADF:
      case EINVAL:
      case ENOTSOCK:
        return Result::kDead;
      default:  // an error of this one connection, which is gone
        continue;
    }
  }
  const int yes = 1;
  ::setsockopt(accepted->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  NameClient(address, accepted);
  return Result::kAccepted;
}

}  // namespace taopd
