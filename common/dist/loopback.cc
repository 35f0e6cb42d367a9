#include "common/dist/loopback.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "common/base/file_descriptor.h"

namespace taopd {

absl::StatusOr<LoopbackListener> ListenOnLoopback() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  if (fd < 0 || ::bind(fd, any, size) != 0 || ::listen(fd, SOMAXCONN) != 0 ||
      ::getsockname(fd, any, &size) != 0) {
    const absl::Status failed = Unavailable("cannot listen on 127.0.0.1: ", std::strerror(errno));
    const FileDescriptor closes(fd);
    return failed;
  }
  return LoopbackListener{fd, ntohs(address.sin_port)};
}

}  // namespace taopd
