// Ends a process that does not end by itself, or that is asked again to end. A step of the engine
// that never returns (a device hangs, or a rank was stopped) holds threads that nothing can
// interrupt, and an orderly end would wait for them forever.
#pragma once

#include <absl/synchronization/notification.h>
#include <absl/time/time.h>
#include <signal.h>

#include <atomic>
#include <thread>

#include "common/base/service/repeated_signals.h"

namespace taopd {

// Thread-safe, apart from Start and EndAtNewRequest.
class EndWatch {
 public:
  // Stops the watch.
  ~EndWatch() { stopped_.Notify(); }
  // Ends the process with kExitInternal and a line in the log once `timeout` has passed, unless the
  // object is destroyed before. Call it once.
  void Start(absl::Duration timeout);
  // Sets the work that the line names as the reason for the wait. `what` must be a string literal.
  void set_waits_for(const char* what) { waits_for_ = what; }
  // Takes `signals`, which all threads must block, until the object is destroyed; later ones stay
  // blocked. The first request to end has been made if `is_requested`, and is made by the next
  // signal otherwise. A signal that makes a second one (RepeatedSignals) ends the process by its
  // default action or, if that does nothing, with 128 + signal. Call it once.
  void EndAtNewRequest(const sigset_t& signals, bool is_requested);

 private:
  std::atomic<const char*> waits_for_{"nothing"};
  absl::Notification stopped_;
  std::jthread timeout_thread_, signal_thread_;  // last, because they use the other members
};

}  // namespace taopd
