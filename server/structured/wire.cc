#include "server/structured/wire.h"

#include <absl/time/clock.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace taopd {
namespace {

constexpr uint32_t kMaxFrameBytes = uint32_t{256} << 20;

// The events of `wanted` that have come.
absl::StatusOr<short> Await(int fd, short wanted, absl::Time deadline) {
  for (;;) {
    int wait_ms = -1;
    if (deadline != absl::InfiniteFuture()) {
      const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
      wait_ms = static_cast<int>(std::clamp<int64_t>(left + 1, 0, INT_MAX));
    }
    pollfd entry = {.fd = fd, .events = wanted, .revents = 0};
    const int ready = ::poll(&entry, 1, wait_ms);
    if (ready > 0) return entry.revents;
    if (ready < 0 && errno != EINTR) return Unavailable("poll: ", std::strerror(errno));
    if (ready == 0 && absl::Now() >= deadline)
      return absl::DeadlineExceededError("the grammar's process does not answer");
  }
}

// True: all bytes are there; false: the end came before the first one.
absl::StatusOr<bool> Fill(int fd, char* to, size_t size, absl::Time deadline) {
  size_t received = 0;
  while (received < size) {
    const ssize_t n = ::recv(fd, to + received, size - received, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      TAOPD_RETURN_IF_ERROR(Await(fd, POLLIN, deadline).status());
    } else if (n < 0 && errno == ECONNRESET) {
      return false;
    } else if (n < 0 && errno != EINTR) {
      return Unavailable("recv: ", std::strerror(errno));
    } else if (n == 0) {
      if (received == 0) return false;
      return Unavailable("a message ends in the middle");
    } else if (n > 0) {
      received += static_cast<size_t>(n);
    }
  }
  return true;
}

std::string Framed(const std::string& frame) {
  const auto size = static_cast<uint32_t>(frame.size());
  std::string out(reinterpret_cast<const char*>(&size), sizeof(size));
  return out += frame;
}

absl::Status SendAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Unavailable("the grammar's process is gone: ", std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

// One byte with room for a descriptor beside it.
struct DescriptorMessage {
  DescriptorMessage() {
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }
  DescriptorMessage(const DescriptorMessage&) = delete;  // it points at itself
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;

  char byte = 0;
  iovec data = {.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
};

}  // namespace

absl::Status SendFrame(int fd, const std::string& frame) { return SendAll(fd, Framed(frame)); }

bool TrySendFrame(int fd, const std::string& frame) {
  const std::string bytes = Framed(frame);
  const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n <= 0) return false;
  // Rare: the rest of a frame that is begun has to follow.
  return SendAll(fd, std::string_view(bytes).substr(static_cast<size_t>(n))).ok();
}

absl::StatusOr<bool> AwaitReadableOrWritable(int fd, absl::Time deadline) {
  TAOPD_ASSIGN_OR_RETURN(const short events, Await(fd, POLLIN | POLLOUT, deadline));
  return (events & ~POLLOUT) != 0;
}

absl::StatusOr<std::optional<std::string>> ReceiveFrame(int fd, absl::Time deadline) {
  uint32_t size = 0;
  TAOPD_ASSIGN_OR_RETURN(const bool begun,
                         Fill(fd, reinterpret_cast<char*>(&size), sizeof(size), deadline));
  if (!begun) return std::optional<std::string>();
  if (size > kMaxFrameBytes) return DataLoss("a message of ", size, " bytes");
  std::string frame(size, '\0');
  TAOPD_ASSIGN_OR_RETURN(const bool complete, Fill(fd, frame.data(), frame.size(), deadline));
  if (!complete) return Unavailable("a message ends in the middle");
  return std::optional<std::string>(std::move(frame));
}

absl::Status SendDescriptor(int fd, int descriptor) {
  DescriptorMessage message;
  cmsghdr* const header = CMSG_FIRSTHDR(&message.header);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(descriptor));
  while (::sendmsg(fd, &message.header, MSG_NOSIGNAL) < 0) {
    if (errno != EINTR) return Unavailable("taopd-grammar is gone: ", std::strerror(errno));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> ReceiveDescriptor(int fd) {
  DescriptorMessage message;
  ssize_t n = 0;
  while ((n = ::recvmsg(fd, &message.header, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {
  }
  if (n < 0) return Unavailable("recvmsg: ", std::strerror(errno));
  if (n == 0) return -1;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message.header);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS)
    return DataLoss("a message without a descriptor");
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof(descriptor));
  return descriptor;
}

}  // namespace taopd
