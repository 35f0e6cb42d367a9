// Decides what a signal that asks a process to stop means, since such signals may come in pairs:
// timeout and systemd, or a launcher and the terminal below it, each send one for the same request.
#pragma once

#include <chrono>
#include <optional>

namespace taopd {

enum class SignalAction {
  kStop,            // the first one: end in order
  kSameRequest,     // a repetition of the first one: nothing more to do
  kEndImmediately,  // a new request: end without saving or waiting
};

// Observes the time of each signal and decides. Not thread-safe.
class RepeatedSignals {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // A signal that comes at least this long after the first one is a new request.
  static constexpr std::chrono::seconds kSameRequestFor{5};

  SignalAction Observe(Time now) {
    if (!first_) {
      first_ = now;
      return SignalAction::kStop;
    }
    return now - *first_ < kSameRequestFor ? SignalAction::kSameRequest
                                           : SignalAction::kEndImmediately;
  }

 private:
  std::optional<Time> first_;
};

}  // namespace taopd
