// Returns the free memory of the C library's heap to the system. The library keeps the memory of a
// large request after it is freed, because a small block behind it is still in use. The program has
// one heap for all threads (KeepFreedMemory, common/base/memory.h), because the library trims the
// end of a further heap only when something in that heap is freed.
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
  // The process has grown if it is larger by this much than its smallest size since the last trim.
  static constexpr int64_t kGrowthBytes = int64_t{32} << 20;
  // The minimum time between two trims by Tick if the process has grown in between.
  static constexpr absl::Duration kGrowthInterval = absl::Seconds(5);
  // The same if it has not grown. Memory that was in use at the last trim may be free now.
  static constexpr absl::Duration kInterval = absl::Seconds(10);

  HeapTrim();
  // For tests: `held_bytes` returns the memory of the process, and `trim` returns its free memory
  // to the system.
  HeapTrim(std::function<int64_t()> held_bytes, std::function<void()> trim)
      : held_bytes_(std::move(held_bytes)), trim_(std::move(trim)), least_bytes_(held_bytes_()) {}

  // Call it about every second. It may take some milliseconds.
  void Tick(absl::Time now);
  // Trims immediately if the process has grown. Call it after work that leaves much free memory.
  void TrimGrowth(absl::Time now);

 private:
  bool HasGrownLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TrimLocked(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<int64_t()> held_bytes_;
  const std::function<void()> trim_;
  absl::Mutex mutex_;
  int64_t least_bytes_ ABSL_GUARDED_BY(mutex_);  // least bytes held since the last trim
  absl::Time trimmed_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace taopd
