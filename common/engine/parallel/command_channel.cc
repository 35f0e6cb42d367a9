#include "common/engine/parallel/command_channel.h"

#include <absl/time/clock.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

namespace taopd {
namespace {

// A message holds the ids and blocks of a batch; a longer one is an error.
constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 32;

}  // namespace

absl::StatusOr<std::pair<int, int>> CommandChannel::MakePair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return Unavailable("socketpair: ", std::strerror(errno));
  }
  return std::pair(ends[0], ends[1]);
}

absl::Status CommandChannel::Send(const std::string& message) {
  const uint64_t size = message.size();
  std::string frame(reinterpret_cast<const char*>(&size), sizeof(size));
  frame += message;
  size_t sent = 0;
  while (sent < frame.size()) {
    const ssize_t n = ::send(fd_.get(), frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Unavailable("the other rank is gone: ", std::strerror(errno));
    sent += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> CommandChannel::Receive() {
  // Returns true if all bytes were received, and false if the stream ended before the first one.
  const auto fill = [this](char* to, size_t size) -> absl::StatusOr<bool> {
    size_t received = 0;
    while (received < size) {
      const ssize_t n = ::recv(fd_.get(), to + received, size - received, 0);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Unavailable("receiving a command: ", std::strerror(errno));
      if (n == 0 && received == 0) return false;
      if (n == 0) return Unavailable("a command ends in the middle");
      received += static_cast<size_t>(n);
    }
    return true;
  };
  uint64_t size = 0;
  TAOPD_ASSIGN_OR_RETURN(const bool begun, fill(reinterpret_cast<char*>(&size), sizeof(size)));
  if (!begun) return std::optional<std::string>();
  if (size > kMaxMessageBytes) return DataLoss("a command of ", size, " bytes");
  std::string message(size, '\0');
  TAOPD_ASSIGN_OR_RETURN(const bool complete, fill(message.data(), message.size()));
  if (!complete) return Unavailable("a command ends in the middle");
  return std::optional<std::string>(std::move(message));
}

bool CommandChannel::Await(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  pollfd wait = {fd_.get(), POLLIN, 0};
  int result = 0;
  do {
    const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
    result = ::poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(left)));
  } while (result < 0 && errno == EINTR);
  return result > 0;
}

}  // namespace taopd
