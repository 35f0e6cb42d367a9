// Decides whether a checkpoint is due because the last one is too old.
#pragma once

#include <absl/time/time.h>

namespace taopd {

// Not thread-safe.
class SaveInterval {
 public:
  // The first interval begins at `start`. With an interval of zero, no checkpoint is ever due.
  SaveInterval(absl::Time start, absl::Duration interval) : last_(start), interval_(interval) {}

  void Saved(absl::Time now) { last_ = now; }
  bool IsDue(absl::Time now) const {
    return interval_ > absl::ZeroDuration() && now - last_ >= interval_;
  }

 private:
  absl::Time last_;
  const absl::Duration interval_;
};

}  // namespace taopd
