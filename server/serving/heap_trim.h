// Returns the free memory of the C library's heap to the system. Large requests, over gRPC as over
// HTTP, leave it there: one small block at the end of the heap keeps all of it. The program has one
// heap for all threads (KeepFreedMemory, common/base/memory.h): the library trims the ends of
// further heaps only when something there is freed.
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
  // Minimum interval between two trims; a trim also needs the process to have grown by kGrowthBytes
  // since its smallest size after the last one.
  static constexpr int64_t kGrowthBytes = int64_t{32} << 20;
  static constexpr absl::Duration kGrowthInterval = absl::Seconds(5);
  // Interval after which the heap is trimmed without growth: what was in use at the last trim may
  // be free now.
  static constexpr absl::Duration kInterval = absl::Seconds(10);

  HeapTrim();
  // For tests: `held_bytes` returns the memory of the process, and `trim` returns its free memory
  // to the system.
  HeapTrim(std::function<int64_t()> held_bytes, std::function<void()> trim);

  // Call it about every second. It may take some milliseconds.
  void Tick(absl::Time now);
  // Trims at once if the process has grown by kGrowthBytes. Call it after work that leaves much
  // free memory.
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
