// Time as a dependency, so that tests can step it by hand. Thread-safe.
#pragma once

#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

namespace taopd {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() = 0;
  virtual void SleepFor(absl::Duration duration) = 0;

  // Returns the machine's clock. The object is never destroyed.
  static Clock* Real();
};

// A clock that moves only when Advance is called. SleepFor advances it and returns immediately.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(absl::Time start = absl::UnixEpoch()) : now_(start) {}
  absl::Time Now() override;
  void SleepFor(absl::Duration duration) override { Advance(duration); }
  void Advance(absl::Duration duration);

 private:
  absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace taopd
