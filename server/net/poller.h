// The events for which one thread waits: those of sockets, and the wake-ups by other threads.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <vector>

#include "common/base/file_descriptor.h"

namespace taopd {

// Not thread-safe, except for Wake.
class Poller {
 public:
  static constexpr uint64_t kWakeId = 0;  // no socket has this id

  Poller();
  // Returns false if the system had no descriptors or watches left.
  bool is_open() const { return wake_watched_ != 0; }

  // Sets the events of the socket to `wanted` (EPOLLIN, EPOLLOUT), which `watched` remembers; it is
  // 0 for a new socket. A socket that waits for nothing is removed: a peer that hangs up would
  // otherwise wake the thread again and again. Does nothing for fd -1. If the system refuses,
  // `watched` stays as it is, and the next call tries again; the first refusal is logged.
  void Watch(int fd, uint64_t id, uint32_t wanted, uint32_t* watched);
  // Waits for at most timeout_ms and returns the ids of the sockets that are ready.
  const std::vector<uint64_t>& Wait(int timeout_ms);
  // Ends the current or the next Wait. Any thread may call.
  void Wake();

 private:
  const FileDescriptor epoll_;
  const FileDescriptor wake_;
  uint32_t wake_watched_ = 0;
  bool has_failed_ = false;
  std::array<epoll_event, 256> events_;
  std::vector<uint64_t> ready_;
};

}  // namespace taopd
