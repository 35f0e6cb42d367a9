#include "server/app/end_watch.h"

#include <cstdlib>
#include <string>

#include "common/base/exit_code.h"
#include "common/base/log.h"

namespace taopd {

void EndWatch::Start(absl::Duration timeout) {
  timeout_thread_ = std::jthread([this, timeout] {
    if (stopped_.WaitForNotificationWithTimeout(timeout)) return;
    LogError("ending the process, which did not end by itself",
             {{"waits_for", std::string(waits_for_.load())},
              {"seconds", absl::ToDoubleSeconds(timeout)}});
    // Without destructors and without flushing streams: a thread that hangs may hold their locks.
    std::_Exit(kExitInternal);
  });
}

void EndWatch::EndAtNewRequest(const sigset_t& signals, bool is_requested) {
  const auto begun_at = std::chrono::steady_clock::now();
  signal_thread_ = std::jthread([this, signals, is_requested, begun_at] {
    RepeatedSignals rule;
    if (is_requested) rule.Observe(begun_at);
    const timespec stop_interval = {.tv_sec = 0, .tv_nsec = 10'000'000};
    for (bool is_last = false; !is_last;) {
      is_last = stopped_.HasBeenNotified();  // a signal from before that time is still taken
      const int signal = ::sigtimedwait(&signals, nullptr, &stop_interval);
      const auto now = std::chrono::steady_clock::now();
      if (signal < 0 || rule.Observe(now) != SignalAction::kEndImmediately) continue;
      ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
      ::raise(signal);
      std::_Exit(128 + signal);  // the first process of a container survives the default action
    }
  });
}

}  // namespace taopd
