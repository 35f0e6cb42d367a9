// Counts calls from their arrival until their answers have left, so that a shutdown can wait for
// the last one. Thread-safe.
#pragma once

#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <cstdint>

namespace taopd {

class CallTracker {
 public:
  void Begin() {
    absl::MutexLock lock(&mutex_);
    ++num_active_;
  }
  void End() {
    absl::MutexLock lock(&mutex_);
    --num_active_;
  }
  // Blocks until no call is left or `deadline` has passed.
  void WaitUntilIdle(absl::Time deadline) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithDeadline(absl::Condition(this, &CallTracker::IsIdle), deadline);
  }

 private:
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_active_ == 0; }

  absl::Mutex mutex_;
  int64_t num_active_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace taopd
