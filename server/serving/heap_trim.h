// Returns the free memory of the C library's heaps to the system. Large requests, over gRPC as over
// HTTP, leave it there: each thread may have a heap of its own, and one small block at the end of a
// heap keeps all of it.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <cstdint>
#include <functional>

namespace taopd {

// Thread-safe.
class HeapTrim {
 public:
  // Heaps are trimmed so long after the last time if the process has grown by so much since it was
  // smallest after that. What was in use then may be free later without any growth: so long after
  // the last time they are trimmed in any case.
  static constexpr int64_t kGrowthBytes = int64_t{32} << 20;
  static constexpr absl::Duration kGrowthInterval = absl::Seconds(5);
  static constexpr absl::Duration kInterval = absl::Seconds(30);

  HeapTrim();
  // For tests: `held_bytes` is what the process holds, and `trim` returns what is free of it.
  HeapTrim(std::function<int64_t()> held_bytes, std::function<void()> trim);

  // Call it every second or so. It may take some milliseconds.
  void Tick(absl::Time now);
  // Trims at once if there is that growth: for after what leaves much free memory.
  void TrimGrowth(absl::Time now);

 private:
  bool HasGrownLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TrimLocked(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<int64_t()> held_bytes_;
  const std::function<void()> trim_;
  absl::Mutex mutex_;
  int64_t least_bytes_ ABSL_GUARDED_BY(mutex_);  // held since the last time
  absl::Time trimmed_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace taopd
