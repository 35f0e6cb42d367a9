#include "common/base/service/service_manager.h"

#include <absl/strings/numbers.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "common/base/file_descriptor.h"
#include "common/base/log.h"

namespace taopd {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

absl::Duration WatchdogPeriod() {
  int64_t microseconds = 0, pid = 0;
  if (!absl::SimpleAtoi(Variable("WATCHDOG_USEC"), &microseconds) || microseconds <= 0)
    return absl::InfiniteDuration();
  if (absl::SimpleAtoi(Variable("WATCHDOG_PID"), &pid) && pid != ::getpid())
    return absl::InfiniteDuration();
  return absl::Microseconds(microseconds);
}

}  // namespace

ServiceManager::ServiceManager()
    : socket_(Variable("NOTIFY_SOCKET")), watchdog_(WatchdogPeriod()) {}

ServiceManager::~ServiceManager() {
  ends_.Notify();
  if (thread_.joinable()) thread_.join();
}

void ServiceManager::WatchWith(std::function<bool()> is_alive) {
  if (socket_.empty() || watchdog_ == absl::InfiniteDuration()) return;
  thread_ = std::thread([this, is_alive = std::move(is_alive)] {
    do {
      if (is_alive()) Send("WATCHDOG=1");
    } while (!ends_.WaitForNotificationWithTimeout(watchdog_ / 2));
  });
}

void ServiceManager::Send(std::string_view message) {
  if (socket_.empty()) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  errno = ENAMETOOLONG;
  bool sent = false;
  if (socket_.size() < sizeof(address.sun_path)) {
    std::memcpy(address.sun_path, socket_.data(), socket_.size());
    if (socket_.front() == '@') address.sun_path[0] = '\0';  // an abstract name
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size());
    const FileDescriptor fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sent = ::sendto(fd.get(), message.data(), message.size(), MSG_NOSIGNAL,
                    reinterpret_cast<const sockaddr*>(&address), size) >= 0;
  }
  if (!sent) {
    LogWarning("the service manager cannot be notified",
               {{"message", message}, {"NOTIFY_SOCKET", socket_}, {"error", std::strerror(errno)}});
  }
}

}  // namespace taopd
