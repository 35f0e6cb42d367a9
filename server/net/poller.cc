#include "server/net/poller.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/log.h"

namespace taopd {

Poller::Poller()
    : epoll_(::epoll_create1(EPOLL_CLOEXEC)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (epoll_.get() >= 0) Watch(wake_.get(), kWakeId, EPOLLIN, &wake_watched_);
}

void Poller::Watch(int fd, uint64_t id, uint32_t wanted, uint32_t* watched) {
  if (fd < 0 || wanted == *watched) return;
  const int operation = *watched == 0 ? EPOLL_CTL_ADD : wanted == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
  epoll_event event{};
  event.events = wanted;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), operation, fd, &event) == 0) {
    *watched = wanted;
  } else if (!std::exchange(has_failed_, true)) {
    LogError("a socket cannot be watched; this is tried again and not logged again",
             {{"error", std::strerror(errno)}});
  }
}

const std::vector<uint64_t>& Poller::Wait(int timeout_ms) {
  ready_.clear();
  const int count =
      ::epoll_wait(epoll_.get(), events_.data(), static_cast<int>(events_.size()), timeout_ms);
  for (int i = 0; i < count; ++i) {
    const uint64_t id = events_[static_cast<size_t>(i)].data.u64;
    if (id != kWakeId) {
      ready_.push_back(id);
      continue;
    }
    uint64_t ignored;
    [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &ignored, sizeof(ignored));
  }
  return ready_;
}

void Poller::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
}

}  // namespace taopd
