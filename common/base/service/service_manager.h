// Tells systemd the state of a service, with the protocol of sd_notify(3): one datagram per message
// to the socket that NOTIFY_SOCKET names. In a unit with Type=notify and WatchdogSec, the service
// counts as started after READY=1, and is killed and started again if no WATCHDOG=1 arrives in
// time.
//
// Without NOTIFY_SOCKET nothing is sent. A message that cannot be sent is logged; it never makes
// the program fail. Thread-safe, apart from WatchWith.
#pragma once

#include <absl/synchronization/notification.h>
#include <absl/time/time.h>

#include <functional>
#include <string>
#include <string_view>
#include <thread>

namespace taopd {

class ServiceManager {
 public:
  // Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID from the environment. The watchdog is off
  // if WATCHDOG_PID names another process.
  ServiceManager();
  // Ends the watchdog's thread.
  ~ServiceManager();
  ServiceManager(const ServiceManager&) = delete;
  ServiceManager& operator=(const ServiceManager&) = delete;

  // Says that the service works.
  void Ready() { Send("READY=1"); }
  // Says that the service is about to end.
  void Stopping() { Send("STOPPING=1"); }
  // If the unit has a watchdog, starts a thread that sends WATCHDOG=1 twice in each of its periods
  // while `is_alive` returns true. Call it at most once. `is_alive` is called on that thread, must
  // live until the destructor returns, and may block: then nothing is sent.
  void WatchWith(std::function<bool()> is_alive);

 private:
  void Send(std::string_view message);

  const std::string socket_;  // as in NOTIFY_SOCKET; empty if there is none
  const absl::Duration watchdog_;
  absl::Notification ends_;
  std::thread thread_;
};

}  // namespace taopd
