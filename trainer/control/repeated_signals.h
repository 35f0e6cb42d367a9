// Decides what a signal that asks a process to stop means, since such signals may come in pairs:
// timeout and systemd, or a launcher and the terminal below it, each send one for the same wish.
#pragma once

#include <chrono>
#include <optional>

namespace taopd {

enum class SignalAction {
  kStop,       // the first one: save and end
  kSameWish,   // a repetition of the first one: nothing more to do
  kEndAtOnce,  // somebody who does not want to wait
};

// Is told the time of each signal and decides. Not thread-safe.
class RepeatedSignals {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // A signal this long after the first one, or later, is a wish of its own.
  static constexpr std::chrono::seconds kSameWishFor{5};

  SignalAction Observe(Time now) {
    if (!first_) {
      first_ = now;
      return SignalAction::kStop;
    }
    return now - *first_ < kSameWishFor ? SignalAction::kSameWish : SignalAction::kEndAtOnce;
  }

 private:
  std::optional<Time> first_;
};

}  // namespace taopd
