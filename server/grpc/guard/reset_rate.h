// How often the streams of one client end before their time. gRPC 1.51 frees such a stream only
// long after it has gone (28 KiB each), so a client that opens and resets streams as fast as it can
// would fill the memory without ever having more open than it may. Not thread-safe.
#pragma once

#include <absl/time/time.h>

#include <algorithm>

namespace taopd {

class ResetRate {
 public:
  // All calls of a few connections at once, when a program is stopped.
  static constexpr double kBurst = 4096;
  static constexpr double kPerSecond = 512;

  // Counts one. False if there were too many.
  bool Take(absl::Time now) {
    num_taken_ = std::max(0.0, num_taken_ - kPerSecond * absl::ToDoubleSeconds(now - counted_at_));
    counted_at_ = now;
    if (num_taken_ >= kBurst) return false;
    num_taken_ += 1;
    return true;
  }
  // Whether nothing is left of what was counted.
  bool IsForgotten(absl::Time now) const {
    return num_taken_ <= kPerSecond * absl::ToDoubleSeconds(now - counted_at_);
  }

 private:
  double num_taken_ = 0;
  absl::Time counted_at_ = absl::UnixEpoch();
};

}  // namespace taopd
