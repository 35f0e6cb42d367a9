// Limits how often one client resets streams. gRPC 1.51 frees a reset stream (28 KiB) only much
// later, so a client that opens and resets streams as fast as it can would fill the memory without
// ever exceeding the limit of open streams. Not thread-safe.
#pragma once

#include <absl/time/time.h>

#include <algorithm>

namespace taopd {

class ResetRate {
 public:
  // Enough for all calls of a few connections, when a program is stopped.
  static constexpr double kBurst = 4096;
  static constexpr double kPerSecond = 512;

  // Counts one reset. Returns false if there were too many.
  bool Take(absl::Time now) {
    num_taken_ = std::max(0.0, num_taken_ - kPerSecond * absl::ToDoubleSeconds(now - counted_at_));
    counted_at_ = now;
    if (num_taken_ >= kBurst) return false;
    num_taken_ += 1;
    return true;
  }
  // Returns whether all counted resets have expired.
  bool IsForgotten(absl::Time now) const {
    return num_taken_ <= kPerSecond * absl::ToDoubleSeconds(now - counted_at_);
  }

 private:
  double num_taken_ = 0;
  absl::Time counted_at_ = absl::UnixEpoch();
};

}  // namespace taopd
